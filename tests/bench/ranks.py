"""Ranks as threads that stay, so that one step of all of them can be measured again and again.

Payloads are copied in memory: what is measured is everything but the network.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

from sancus.config.resolve import make_config
from sancus.graphs.shards import open_shard
from sancus.runs import build
from sancus.shards.cache import prepare
from sancus.training.trainer import Trainer
from tests.helpers.threads import Board, thread_group

GRAPH = "synthetic:reddit@0.05"
SIZE = 2


class Ranks:
    """Two trainers of one configuration, one thread each."""

    def __init__(self, **flags: Any) -> None:
        config = make_config(**{"hidden": 128, "broadcast": "library"} | flags)
        board, folder = Board(SIZE), shards()
        groups = [thread_group(rank, SIZE, board) for rank in range(SIZE)]
        self._pool = ThreadPoolExecutor(SIZE, initializer=torch.set_num_threads, initargs=(1,))
        self._trainers: list[Trainer] = []
        self._epoch = -1
        make = [
            self._pool.submit(
                build.make_trainer, config, open_shard(folder, rank), group, torch.device("cpu")
            )
            for rank, group in enumerate(groups)
        ]
        self._trainers = [trainer.result() for trainer in make]

    def step(self, action: Callable[[Trainer, int], Any]) -> list[Any]:
        """One call on every rank at once; each call has an epoch of its own."""
        self._epoch += 1
        return self.together([lambda t=trainer: action(t, self._epoch) for trainer in self._trainers])

    def together(self, actions: list[Callable[[], Any]]) -> list[Any]:
        """One action a rank, at once."""
        return [future.result() for future in [self._pool.submit(action) for action in actions]]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


@cache
def shards() -> Path:
    """The graph in two METIS parts."""
    return prepare(GRAPH, "metis", SIZE).directory
