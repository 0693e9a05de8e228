"""The cost model for GPUs with known rates: predicts the times of many configs at once, from first principles."""
