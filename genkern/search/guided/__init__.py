"""The default search: a learned model of times on top of the cost model, and the strategies that use it."""
