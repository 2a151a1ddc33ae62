"""Advice before a run: what it will need, and whether everything is installed."""
