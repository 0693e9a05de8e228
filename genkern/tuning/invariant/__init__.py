"""Batch invariant: sizes that differ in M alone, whose winners add up K in one order.

May import: what genkern.tuning may.
"""
