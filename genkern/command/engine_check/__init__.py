"""`genkern engine-check`: an engine with a bundle beside the engine without it, as whole processes on a GPU."""
