"""`genkern engine-check`: compares an engine with a bundle to the engine without it, as whole processes on a GPU."""
