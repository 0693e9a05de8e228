"""Bundles of winners: their records, their file, the look-up of a winner, and the versions that they depend on."""
