"""The first hour on a machine: the predictor's constants fitted (`calibrate`), and all of it in steps (`first-run`)."""
