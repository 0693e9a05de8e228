"""Files of compiled kernels, for machines that have compiled nothing yet, and trimming of the cache."""
