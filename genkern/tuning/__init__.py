"""Finds the winner of a problem: measures, checks and chooses, on one device or several.

May import: all rooms but command.
"""
