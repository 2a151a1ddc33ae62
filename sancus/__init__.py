"""Sancus: decentralised full-graph GNN training that avoids communication and shows the bill."""

__version__ = "0.1.0"
