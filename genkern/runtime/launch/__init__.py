"""From a launch plan to launches: parameters of binaries, calls of the drivers, workspaces, and GPUs."""
