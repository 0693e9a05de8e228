"""What environment variables ask of a process: bundles, recording of sizes, tuning at run time.

May import what runtime may, and from formats and the journal what reads, writes and locks files.
"""
