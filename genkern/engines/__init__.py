"""engines: programs that serve models, and how each calls winners: a file an engine, and what they share.

Nothing here is imported by a program that does not name a bundle (GENKERN_CONFIG).
"""
