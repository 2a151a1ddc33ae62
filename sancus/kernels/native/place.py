"""Where the compiled library is; knows no torch, so that a setting can be checked before torch is loaded."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "libsancus.so"  # setup.py builds it beside this module


def library_path() -> Path:
    """Beside this module, or what `SANCUS_LIBRARY` names (a build with sanitizers, for example)."""
    override = os.environ.get("SANCUS_LIBRARY")
    return Path(override) if override else Path(__file__).with_name(FILE_NAME)
