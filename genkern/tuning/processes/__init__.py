"""Tuners in processes of their own, so that the devices of a run do not share one interpreter.

May import: everything below tuning, and tuning.
"""
