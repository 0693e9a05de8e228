"""The constants of the cost model: the shipped ones, and constants that are fitted on the user's device."""
