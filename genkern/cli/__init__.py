"""The command line: options, the run, and the text that users read.

May import: all rooms but packing and cluster.
"""
