"""Compiling on a Dask cluster: units of work go to nodes as text and come back as bytes."""
