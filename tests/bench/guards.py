"""What guards and gauges cost: headers, checks, finite tests, watch, stopwatch, looks at codec errors.

    python -m tests.bench.guards synthetic:nodes=40000,features=128,classes=16,degree=20

As shares of an epoch's CPU seconds of the calling thread, so that a busy machine does not disturb the ratio.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.engine.results import heading, write
from sancus.comm import group as groups
from sancus.comm import header
from sancus.comm.group import Group
from sancus.comm.stopwatch import Stopwatch
from sancus.config.settings import Config, FactorSettings
from sancus.console.speaker import SILENT
from sancus.datasets.open import open_graph
from sancus.exchange import codec_error, delivery, health
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.partitioners import PARTITIONERS
from sancus.plugins import build
from sancus.runs.build import make_trainer
from sancus.shards.partition import build_shards
from sancus.training import trainer as training
from sancus.training.settings import TrainingSettings
from sancus.watch.watch import Watch
from tests.helpers.processes import run_ranks

RANKS, WARM, EPOCHS = 2, 2, 10
GRAPH = "synthetic:nodes=40000,features=128,classes=16,degree=20"
RESULTS = Path(__file__).parents[2] / "experiments/guards/results.json"
CASES = {
    "cagnet": FactorSettings(
        plan="block",
        broadcast="library",
        reuse_input=False,
        order="aggregate-first",
        skip_input_gradient=False,
    ),
    "exact, halo": FactorSettings(plan="halo"),
    "exact, prepost, int2": FactorSettings(plan="prepost", codec="int2"),
}


def measure(group: Group, folder: str, case: str) -> dict[str, float]:
    """CPU seconds an epoch of this rank: in all, and in each guard."""
    spent: Counter[str] = Counter()

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **flags: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **flags)
            finally:
                spent[name] += time.thread_time() - began

        return call

    for name in ("seal", "blank", "unseal"):
        setattr(groups, name, timed("plain headers", getattr(header, name)))
    for name in ("seal", "blank"):
        setattr(delivery, name, timed("payload headers", getattr(header, name)))
    header.Header.check = timed("checks", header.Header.check)  # type: ignore[method-assign]
    health.finite = training.finite = timed("finite", health.finite)  # type: ignore[attr-defined]
    delivery.look = timed("codec errors", codec_error.look)  # type: ignore[assignment]
    Stopwatch.turn_to = timed("stopwatch", Stopwatch.turn_to)  # type: ignore[method-assign]
    watch = Watch(group.rank, group.size, 30.0, print)
    for name in ("started", "waits", "goes_on"):
        setattr(watch, name, timed("watch", getattr(watch, name)))
    watch.follow(group, Path(folder) / "watch")
    config = Config(
        factors=CASES[case],
        shape=ModelSettings(layers=3, hidden=64),
        training=TrainingSettings(epochs=WARM + EPOCHS, eval_every=WARM + EPOCHS),
    )
    made = make_trainer(config, open_shard(Path(folder), group.rank), group, torch.device("cpu"))
    for epoch in range(WARM):
        made.train_epoch(epoch)
    spent.clear()
    wall, cpu = time.perf_counter(), time.thread_time()
    for epoch in range(WARM, WARM + EPOCHS):
        made.train_epoch(epoch)
    spent["epoch"] = time.thread_time() - cpu
    spent["epoch, wall"] = time.perf_counter() - wall
    return {name: seconds / EPOCHS for name, seconds in spent.items()}


def main() -> None:
    """Measure every transport and setting; write `experiments/guards/results.json`."""
    graph = sys.argv[1] if len(sys.argv) > 1 else GRAPH
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "shards"
        partitioner = build("partitioner", PARTITIONERS, "metis")
        build_shards(open_graph(graph), partitioner, "metis", RANKS, folder, SILENT)
        for backend, case in itertools.product(("gloo", "mpi"), CASES):
            of_ranks = run_ranks(
                "tests.bench.guards:measure",
                RANKS,
                backend=backend,
                folder=str(folder),
                case=case,
                timeout=500,
            )
            mean = {key: sum(row.get(key, 0.0) for row in of_ranks) / RANKS for key in of_ranks[0]}
            rows.append({"backend": backend, "case": case, "seconds": mean})
            shares = ", ".join(f"{key} {1e3 * seconds:.2f} ms" for key, seconds in mean.items())
            print(f"{backend} {case}: {shares}", flush=True)
    if graph == GRAPH:
        content = heading("python -m tests.bench.guards") | {"title": "What the guards cost"}
        write(RESULTS, content | {"graph": graph, "ranks": RANKS, "rows": rows})


if __name__ == "__main__":
    main()
