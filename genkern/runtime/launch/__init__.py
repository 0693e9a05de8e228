"""From a plan to launches: parameters of binaries, the drivers' calls, workspaces, and what a call needs of a GPU."""
