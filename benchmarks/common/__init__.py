"""What benchmarks share: figures and tables, what is kept, rounds, the workbench."""
