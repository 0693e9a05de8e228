"""The command line: options, what a run works with, and what a person reads.

May import: all rooms.
"""
