"""Reads compiled kernels: the resources they need, the instructions of their main loop, and code that must not run."""
