"""The constants of the cost model: shipped ones, and those fitted to measurements on the user's device."""
