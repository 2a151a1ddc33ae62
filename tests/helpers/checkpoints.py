"""Checkpoints without a run: whole by their manifest, whatever their files hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.runs.checkpoints import durable, names


def write_checkpoint(directory: Path, files: Mapping[str, bytes]) -> None:
    """A checkpoint with these shared files; one that is not given is empty."""
    directory.mkdir(parents=True)
    held = dict.fromkeys(names.SHARED, b"") | dict(files)
    sums = {name: durable.checksum(content) for name, content in held.items()}
    for name, content in (held | {names.MANIFEST: durable.manifest_text(sums)}).items():
        durable.write_file(directory / name, content)


def write_settings(run: Path, config: Mapping[str, Any]) -> None:
    """A run's checkpoint of epoch 3 that was made with these settings."""
    state = json.dumps({"extra": {"config": dict(config)}}).encode()
    write_checkpoint(run / "checkpoint" / "epoch-00000003", {"state.json": state})
