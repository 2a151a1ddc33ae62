"""From a graph to shards on disk: cut, cached, checked against the memory that is free."""
