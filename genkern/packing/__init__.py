"""From results to bundles: what is to be launched, compiled where the cache lacks it, and written into one file.

Lists of sizes too: those that programs recorded joined into one, and those of a model's config.json.

May import every other room; of the runtime, the bundle.
"""
