"""Strategies that do not correct the model of times with the size's own times; each has its own rule when to stop."""
