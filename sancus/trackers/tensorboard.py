"""Tracker `tensorboard`: event files in the run's directory, for `tensorboard --logdir runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.metrics.declared import METRICS
from sancus.trackers.base import Record


def _in_unit(unit: str) -> tuple[str, ...]:
    return tuple(name for name, metric in METRICS.items() if metric.unit == unit)


GROUPS = {
    "score": ("train", "val", "test"),
    "bytes": _in_unit("B"),
    "seconds": _in_unit("s"),
    "staleness": ("sends", "skips", "max_age", "max_drift"),
    "codec": ("codec_error", "codec_noise"),
}
FINAL = ("test", "val", "best_epoch", "seconds_per_epoch")


class TensorBoard:
    """Every figure of an epoch as a scalar, the settings as text (extra `tensorboard`)."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory / "tensorboard"))
        self._groups = {name: group for group, names in GROUPS.items() for name in names}
        self._text("settings", f"```json\n{json.dumps(config, indent=1)}\n```")

    def epoch(self, record: Record) -> None:
        for name, value in record.items():
            if name != "epoch" and value is not None:
                group = self._groups.get(name)
                tag = f"{group}/{name}" if group else name
                self._writer.add_scalar(tag, value, int(record["epoch"] or 0))

    def finish(self, run: Mapping[str, Any]) -> None:
        result = run["result"]
        self._text("result", "  \n".join(f"{name}: {result[name]}" for name in FINAL))
        self._writer.close()

    def _text(self, tag: str, text: str) -> None:
        self._writer.add_text(tag, text)
