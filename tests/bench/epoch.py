"""Epochs with one kernel and with another, in turn: `python -m tests.bench.epoch synthetic --preset cagnet`.

One process, so that only compute is measured. Printed are the time of a training epoch, and how much of it is
spent in sparse products.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.presets import preset_settings
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.shards import open_shard
from sancus.kernels.matrix import SparseMatrix
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.shards.cache import prepare
from tests.bench.table import CLOCKS, Clock


@contextmanager
def products_timed(clock: Clock) -> Iterator[list[float]]:
    """The seconds of every product that is made inside."""
    seconds: list[float] = []

    def timed(name: str) -> Any:
        original = getattr(SparseMatrix, name)

        def call(self: SparseMatrix, *operands: torch.Tensor) -> Any:
            start = clock()
            result = original(self, *operands)
            seconds.append(clock() - start)
            return result

        return mock.patch.object(SparseMatrix, name, call)

    with timed("multiply"), timed("accumulate"):
        yield seconds


def compare(data: str, flags: argparse.Namespace) -> None:
    """Epochs of all kernels, in turn; the first epoch of each is not counted."""
    folder, clock = prepare(data, "metis", 1).directory, CLOCKS[flags.clock]
    settings: dict[str, Any] = dict(preset_settings(flags.preset))
    trainers = {}
    for kernel in flags.kernels:
        config = Config(
            preset=flags.preset,
            model=flags.model,
            factors=FactorSettings(**settings | {"kernel": kernel}),
            shape=ModelSettings(hidden=flags.hidden),
        )
        trainers[kernel] = make_trainer(config, open_shard(folder, 0), Group(Alone()), torch.device("cpu"))
    epochs: dict[str, list[float]] = {kernel: [] for kernel in trainers}
    shares: dict[str, list[float]] = {kernel: [] for kernel in trainers}
    for epoch in range(flags.epochs + 1):
        for kernel, trainer in trainers.items():
            with products_timed(clock) as products:
                start = clock()
                trainer.train_epoch(epoch)
                seconds = clock() - start
            if epoch:
                epochs[kernel].append(seconds)
                shares[kernel].append(sum(products) / seconds)
    print(
        f"\n{data}, {flags.model}, {flags.preset}, hidden {flags.hidden}, {flags.threads} threads, ", end=""
    )
    print(f"{flags.clock} time")
    first = epochs[flags.kernels[0]]
    for kernel, times in epochs.items():
        gain = statistics.median(a / b for a, b in zip(first, times, strict=True))
        print(
            f"  {kernel:12} epoch {statistics.median(times) * 1e3:8.1f} ms, "
            f"products {statistics.median(shares[kernel]):4.0%}, {gain:.2f} × {flags.kernels[0]}"
        )


def main() -> None:
    """Read the flags, print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="as for `sancus train`")
    parser.add_argument("--preset", choices=["exact", "cagnet"], default="exact")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--hidden", type=int, default=ModelSettings().hidden)
    parser.add_argument("--kernels", nargs="+", default=["torch", "native"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="processor: for one thread on a busy machine"
    )
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    for data in flags.data:
        compare(data, flags)


if __name__ == "__main__":
    main()
