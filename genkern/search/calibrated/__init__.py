"""The predictor's constants: those that are shipped, and those that a device's own kernels fit."""
