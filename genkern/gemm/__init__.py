"""What is computed, and records of the outcome: problems, types, configs, GPUs, the installed Triton.

May import: errors, files.
"""
