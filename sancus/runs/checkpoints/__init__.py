"""Checkpoints: what they hold, and how they are written whole or not at all."""
