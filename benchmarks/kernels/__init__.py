"""How fast kernels are beside the libraries' and other projects', in the same rounds."""
