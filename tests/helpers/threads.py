"""Ranks as threads of one process (`sancus.comm.threads`), for tests that need agreement but no network."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sancus.comm import threads
from sancus.comm.group import Group
from sancus.comm.threads import Board, ThreadTransport, results, thread_group
from sancus.config.settings import Config
from sancus.graphs.shards import Shard, open_shard
from sancus.models.build import Model
from sancus.runs.build import make_trainer
from sancus.training.trainer import Trainer

__all__ = ["Board", "ThreadTransport", "results", "run_threads", "thread_group"]
ATTEMPTS = 50
CPU = torch.device("cpu")


def open_own(folder: Path, group: Group) -> Shard:
    """The shard of a rank that is a thread.

    numpy reads headers by `ast`, which in threads of Python 3.11 fails now and then with a SystemError
    ("AST constructor recursion depth mismatch"); asked again, it answers.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(SystemError):
            return open_shard(folder, group.rank)
    raise AssertionError("ast fails every time")


def thread_trainer(
    config: Config, shard: Shard, group: Group, device: torch.device = CPU, model: Model | None = None
) -> Trainer:
    """The trainer of a rank that is a thread."""
    return make_trainer(config, shard, group, device, model)


def run_threads(
    size: int,
    function: Callable[[Group], Any],
    make: Callable[[int, int, Board], Group] = thread_group,
) -> list[Any]:
    """`function(group)` on every rank; its result, or the exception that it raised, by rank."""
    with drawing_in_turns():
        return threads.run_threads(size, function, make)


@contextlib.contextmanager
def drawing_in_turns() -> Iterator[None]:
    """Inside, one rank at a time draws weights: threads share torch's random numbers, processes do not."""
    lock, fork = threading.Lock(), torch.random.fork_rng

    @contextlib.contextmanager
    def locked(*arguments: Any, **options: Any) -> Iterator[None]:
        with lock, fork(*arguments, **options):
            yield

    with mock.patch.object(torch.random, "fork_rng", locked):
        yield
