"""Graphs: a whole graph in memory, its normalised adjacency, and its shards on disk (one a rank)."""
