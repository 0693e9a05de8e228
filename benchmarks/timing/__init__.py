"""Whether times can be trusted."""
