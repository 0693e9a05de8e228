"""genkern from Python: `tune`, `load` and `explain`, with typed results.

A run is the main command in a child process, so that a program with threads, CUDA contexts and signal handlers of its
own can tune. `genkern/__init__.py` has the public names.
"""
