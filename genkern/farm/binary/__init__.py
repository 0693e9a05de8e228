"""What a compiled kernel needs of the hardware and does, and must not do, read from the binary itself."""
