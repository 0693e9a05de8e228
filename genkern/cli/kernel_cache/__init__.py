"""`kernels` writes compiled kernels to a file for other machines; `cache` trims the local cache.

May import: everything below command, and the rest of command.
"""
