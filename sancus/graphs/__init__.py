"""A graph in memory, its normalisation, and its shards on disk."""
