"""The predictor for GPUs whose rates are known: the time of many configs at once, from first principles."""
