"""Compiled kernels in one file, for machines that have compiled nothing yet."""
