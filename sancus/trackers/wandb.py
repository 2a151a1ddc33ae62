"""Tracker `wandb`: a run of Weights & Biases, offline unless `WANDB_MODE` says otherwise.

Offline its files are in `wandb` beside the run's directory; `wandb sync` sends them when you want it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sancus.trackers.base import Record
from sancus.trackers.scalars import FINAL, epoch_of, flat, scalars

PROJECT = "sancus"


class WandB:
    """Every figure of an epoch, the settings as the run's config (extra `wandb`)."""

    def __init__(self, directory: Path, config: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=directory.name,
            dir=str(directory.resolve().parent),
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            config=flat(config),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def epoch(self, record: Record) -> None:
        self._run.log(scalars(record), step=epoch_of(record))

    def finish(self, run: Mapping[str, Any]) -> None:
        result = run["result"]
        self._run.summary.update({f"result/{name}": result[name] for name in FINAL})
        self._run.finish()
