"""From a model's config.json to its sizes (`genkern shapes`) and to a bundle of winners (`genkern model`).

May import every room but cluster.
"""
