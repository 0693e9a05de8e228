"""Strategies with a fixed order of candidates: predicted, by form or random, each with its own rule when to stop."""
