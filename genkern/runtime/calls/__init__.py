"""Calls of winners by tensors: arguments, what computes them, and the dispatcher."""
