"""The cache directory of Sancus, for what can be made again: shards, unpacked archives, downloads."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """`SANCUS_HOME`, or `sancus` in the user's cache directory."""
    if "SANCUS_HOME" in os.environ:
        return Path(os.environ["SANCUS_HOME"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sancus"
