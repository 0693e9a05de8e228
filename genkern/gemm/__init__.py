"""What is to be computed and what comes of it: problems, types, configs, records, GPUs, and the profiler contract.

May import: errors, files.
"""
