"""What searches and timers share: sessions, profilers, statistics of samples, and the libraries that race.

May import: gemm.
"""
