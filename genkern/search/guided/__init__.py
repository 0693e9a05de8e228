"""The default search: a model of times, physics and what was learned of its errors, and the strategy that it guides."""
