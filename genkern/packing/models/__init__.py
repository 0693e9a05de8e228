"""From a model's config.json to sizes (`genkern shapes`), and on to a bundle of their winners (`genkern model`).

May import every other room; of the runtime, the bundle, and which winner serves a call.
"""
