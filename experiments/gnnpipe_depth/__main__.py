"""Bytes against depth, as predicted: `python -m experiments.gnnpipe_depth`. Nothing is trained.

Predicted bytes are measured ones: see the tests of `sancus estimate`, for the full graph and for pipelines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine.computed import main_of
from sancus.advise.estimate import Machine
from sancus.advise.staged import predict
from sancus.config.resolve import make_config
from sancus.datasets.open import open_graph

HERE = Path(__file__).parent
TITLE = "GNNPipe: bytes against depth, from the plans"
GRAPHS = ("squirrel", "coauthor-physics", "linux-include")
DEPTHS = (8, 16, 32, 64)
RANKS, HIDDEN = 4, 64
SETTINGS: dict[str, dict[str, Any]] = {
    "published": {"plan": "halo", "reuse_input": False, "order": "aggregate-kept"},
    "exact": {"preset": "exact"},
    "gnnpipe": {"preset": "gnnpipe"},
}
MACHINE = Machine(link=1.25e8, latency=5e-5, spmm=1e9, gemm=2e10)  # for seconds, which are not shown


def measure(data: str, depths: Sequence[int]) -> list[dict[str, Any]]:
    """For every depth the bytes of an epoch in all, as published, with `exact`, and in stages."""
    graph, rows = open_graph(data), []
    for layers in depths:
        shape = {"model": "gcn", "layers": layers, "hidden": HIDDEN}
        found = {
            name: predict(graph, make_config(**shape, **flags), RANKS, MACHINE).all_bytes
            for name, flags in SETTINGS.items()
        }
        rows.append({"data": data, "layers": layers, "nodes": graph.nodes, "all_bytes": found})
        print(f"{data}, {layers} layers", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main_of(HERE, TITLE, __doc__, measure, GRAPHS, DEPTHS, few=2))
