"""Whole sessions, as `sancus train` runs them, by ranks that a test has already: no process is started.

    lines = train(transport, "synthetic:nodes=300", "--epochs", "12", "--out", out, stop_after=5)

What they leave behind is compared with `assert_same`: bit for bit, all but clocks.
"""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors import safe_open

from sancus.cli.train import read_flags
from sancus.comm.group import Group
from sancus.comm.ledger import Ledger
from sancus.console.speaker import Silent
from sancus.launch.interrupt import SIGNALS, Stopped
from sancus.launch.world import RUN, World
from sancus.runs.layout import chunks_needed, parts_needed
from sancus.runs.session import Request, run_rank
from sancus.shards.cache import prepare
from sancus.training.trainer import Trainer
from tests.helpers.command import metrics

GRAPH = "synthetic:nodes=300,features=12,classes=4,degree=6"
# What an epoch computes and decides. Clocks differ, and bytes: a resumed run fetches the features once more.
COMPUTED = (
    "epoch",
    "loss",
    "train",
    "val",
    "test",
    "sends",
    "skips",
    "max_age",
    "max_drift",
    "history_bytes",
)
ARRAYS = {"decisions": "decisions", "predictions": "prediction"}
WITHOUT_CLOCKS = ("weights.safetensors", "best.safetensors", "optimizer.safetensors")


def train(
    group: Group,
    *argv: str | Path,
    stop_after: int | None = None,
    before_epoch: Callable[[int], None] = lambda epoch: None,
) -> list[str]:
    """One session; what rank 0 said, and at last what a run that was stopped tells its user.

    `stop_after` epochs the last rank, and only that, gets SIGTERM.
    """
    data, config = read_flags([str(word) for word in argv])
    rank, size = group.rank, group.size
    parts, chunks = parts_needed(config, size), chunks_needed(config, size)
    factors = config.factors
    shards = prepare(data, factors.partitioner, parts, factors.row_order, chunks=chunks)
    group.ledger = Ledger()
    notes = Notes()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    train_epoch = Trainer.train_epoch

    def hooked(trainer: Trainer, epoch: int) -> float:
        before_epoch(epoch)
        if epoch + 1 == stop_after and rank == size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_epoch(trainer, epoch)

    with (
        mock.patch("sancus.runs.build.connect", return_value=group),
        mock.patch("sancus.runs.session.open_log"),  # of which a process has one
        mock.patch.object(group, "close"),
        mock.patch.object(Trainer, "train_epoch", hooked),
        mock.patch.dict(os.environ, {RUN: uuid.uuid4().hex}),
    ):
        try:
            run_rank(Request(data, config, ""), World(rank, size, rank, size, "local"), "gloo", shards, notes)
        except Stopped as stop:
            notes(str(stop))
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return notes.lines


class Notes(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)


def newest(directory: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((directory / "checkpoint").glob("epoch-*"))


def assert_same(one: Path, other: Path) -> None:
    """Two runs that ended: the same losses, scores, decisions, weights, and memory of every rank."""
    first, second = (
        [[epoch[name] for name in COMPUTED] for epoch in metrics(directory)] for directory in (one, other)
    )
    assert first == second, (first, second)
    ours, theirs = newest(one), newest(other)
    assert ours.name == theirs.name
    for name in WITHOUT_CLOCKS:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    own = [file.name for file in sorted(ours.glob("rank-*"))]
    assert own == [file.name for file in sorted(theirs.glob("rank-*"))] != []
    for name in own:
        assert _memory(ours / name) == _memory(theirs / name), name
    for name in ARRAYS:
        left, right = (np.load(directory / f"{name}.npz")[ARRAYS[name]] for directory in (one, other))
        assert not left.size + right.size or np.array_equal(left, right), name


def _memory(path: Path) -> dict[str, Any]:
    """What a rank remembers."""
    with safe_open(str(path), "np") as file:
        plain = json.loads(file.metadata()["plain"])
        tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return tensors | plain
