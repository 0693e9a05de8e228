"""What who asks for times and who takes them agree on: sessions, profilers, what samples say, the libraries that race.

May import: gemm.
"""
