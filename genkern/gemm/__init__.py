"""What is to be computed and what comes of it: problems, types, configs, records, GPUs, the installed Triton.

May import: errors, files.
"""
