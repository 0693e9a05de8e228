"""Compiling on other machines: units go there as text and come back as bytes; Dask says which machine does what."""
