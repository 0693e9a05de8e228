"""Where a run's seconds go."""
