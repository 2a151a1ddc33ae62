"""Finds out which rank the others wait for: every rank posts what it does, outside all collectives."""
