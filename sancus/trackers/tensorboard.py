"""Tracker `tensorboard`: event files in the run's directory, for `tensorboard --logdir runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.trackers.base import Record
from sancus.trackers.scalars import FINAL, epoch_of, scalars


class TensorBoard:
    """Every figure of an epoch as a scalar, the settings as text (extra `tensorboard`)."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))
        self._text("settings", f"```json\n{json.dumps(config, indent=1)}\n```")

    def epoch(self, record: Record) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, epoch_of(record))

    def finish(self, run: Mapping[str, Any]) -> None:
        result = run["result"]
        self._text("result", "  \n".join(f"{name}: {result[name]}" for name in FINAL))
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        self._writer.add_text(tag, text)
