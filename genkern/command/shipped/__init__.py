"""`kernels`, `cache`: compiled kernels in one file, for others to start from; what is kept of them here.

May import: everything below command.
"""
