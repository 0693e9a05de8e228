"""How many of the published model types genkern lists the products of."""
