"""Batch invariance: tuning of sizes that differ only in M, so that their winners add up K in one order.

May import: what genkern.tuning may.
"""
