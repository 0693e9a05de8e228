"""Strategies that know no model of time: they ask in the predictor's order, or in none, and say when that is enough."""
