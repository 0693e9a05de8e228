"""Commands that turn results into other programs' files and back.

May import: formats and what is below it, and the other commands.
"""
