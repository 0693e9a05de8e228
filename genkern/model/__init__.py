"""The model of times: physics, and what was learned of its errors."""
