"""How fast kernels compile, on one machine and beside several GPUs."""
