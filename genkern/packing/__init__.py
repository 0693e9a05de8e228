"""From results to bundles: what is to be launched, compiled where the cache lacks it, and written into one file.

May import every other room; of the runtime, the bundle.
"""
