"""Commands that convert results to other programs' files and back.

May import: formats and what is below it, and the other commands.
"""
