"""Plugins by which inference engines call winners: one file per engine, and the code that they share.

A program that names no bundle (GENKERN_CONFIG) imports nothing of this.
"""
