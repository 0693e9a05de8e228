"""Compiling and measuring on many machines: what it costs, and how far it goes."""
