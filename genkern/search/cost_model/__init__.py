"""The cost model: predicts a config's time from bytes, operations and waves, with constants that can be fitted."""
