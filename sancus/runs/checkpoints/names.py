"""The names of a checkpoint's files: which there are, and which are ours. Imports no torch."""

from __future__ import annotations

import re

SHARED = ("weights.safetensors", "best.safetensors", "optimizer.safetensors", "state.json")
MANIFEST = "manifest.json"
PATTERN = "epoch-*"
PARTIAL, OLD = ".partial-", ".old-"  # beginnings of names that are no one's any more after a crash
RANK_FILE = re.compile(r"rank-\d+\.safetensors")


def rank_file(rank: int) -> str:
    """The name of a rank's own file."""
    return f"rank-{rank:05d}.safetensors"


def is_ours(name: str) -> bool:
    """Whether a file of this name in a checkpoint's directory is one that checkpoints have."""
    return name in (*SHARED, MANIFEST) or RANK_FILE.fullmatch(name) is not None
