"""Jinja files only; a package so that they are installed."""
