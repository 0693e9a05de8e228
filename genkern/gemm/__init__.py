"""Problems, types, configs, GPUs, the installed Triton, and records of what happens to candidates.

May import: errors, files.
"""
