"""Files that genkern reads and writes for others, one module per format."""
