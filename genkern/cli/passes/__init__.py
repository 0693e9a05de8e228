"""Passes of a run: tuners work on its sizes once, and for --batch_invariant again in one order of sums.

May import: all rooms but packing and cluster.
"""
