"""Commands that convert results to other programs' files and back.

May import: everything below command, and the rest of command.
"""
