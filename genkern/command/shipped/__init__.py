"""`kernels`: compiled kernels in one file, for others to start from.

May import: everything below command.
"""
