"""Compiled kernels in one file, for machines that have compiled nothing yet; and which a cache may lose."""
