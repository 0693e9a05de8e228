"""The GEMM formats that genkern tunes, one file each."""
