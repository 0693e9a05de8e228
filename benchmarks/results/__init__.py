"""The shipped results: which files there are to be, of which sizes, and all of them anew by one command."""
