"""Volume against ranks, from the plans alone: `python -m experiments.supergcn_ranks`. Nothing is trained.

A graph is cut by METIS into 2 to 256 parts; what one aggregation sends follows from the rows of each plan.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.engine.computed import main_of
from sancus.datasets.open import open_graph
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.quality import quality
from sancus.plugins import build

HERE = Path(__file__).parent
TITLE = "SuperGCN: volume against ranks, from the plans"
GRAPHS = (
    "linux-include",
    "amazon-computers",
    "acl-papers",
    "synthetic:reddit@0.05",
    "synthetic:products@0.01",
)
RANKS = (2, 4, 8, 16, 32, 64, 128, 256)


def measure(data: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """For every number of ranks the rows that one aggregation sends under each plan."""
    graph = open_graph(data)
    metis = build("partitioner", PARTITIONERS, "metis")
    rows = []
    for parts in ranks:
        start = time.monotonic()
        cut = quality(graph.adjacency, metis.assign(graph.adjacency, parts), parts)
        rows.append(
            {"data": data, "ranks": parts, "nodes": graph.nodes, "entries": int(graph.adjacency.nnz)}
            | {"payload_rows": dict(cut.payload_rows), "cut_share": cut.edge_cut_share}
        )
        print(f"{data}, {parts} parts: {time.monotonic() - start:.1f} s", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main_of(HERE, TITLE, __doc__, measure, GRAPHS, RANKS, few=3))
