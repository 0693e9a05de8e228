"""Whether the check finds faults."""
