"""From a problem to its winner: measure, check, choose; on one device or several.

May import: all rooms but command.
"""
