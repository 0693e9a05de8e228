"""Vega and Vega-Lite, the chart library of the page, as built by their authors; `renew.py` replaces them."""
