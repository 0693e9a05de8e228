"""From results to bundles: kernels are compiled if the cache lacks them, proved on a GPU, and written into one file.

Also size lists: `merge` joins recorded sizes, `shapes` reads a model's config.json.

May import every room but cluster.
"""
