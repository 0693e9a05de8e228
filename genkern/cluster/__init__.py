"""Compiling and measuring on different machines: `compile`, `measure`, `collect`, `sbatch` and `lab`.

May import: everything. Only the command imports it.
"""
