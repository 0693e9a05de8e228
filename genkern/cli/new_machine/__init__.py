"""Commands for a new machine: `calibrate` fits the cost model's constants, `first-run` tries everything in steps."""
