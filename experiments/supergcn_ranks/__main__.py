"""Volume against ranks, from the plans alone: `python -m experiments.supergcn_ranks`. Nothing is trained.

A graph is cut by METIS into 2 to 256 parts; what one aggregation sends follows from the rows of each plan.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import documents
from experiments.engine import results
from sancus.datasets.open import open_graph
from sancus.errors import UserError
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


def main() -> int:
    """Cut all graphs, write the results and the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small graph; writes nothing")
    flags = parser.parse_args()
    try:
        graphs, ranks = (("synthetic",), RANKS[:3]) if flags.quick else (GRAPHS, RANKS)
        rows = [row for data in graphs for row in measure(data, ranks)]
    except UserError as error:
        print(f"experiments.supergcn_ranks: {error}", file=sys.stderr)
        return 2
    if not flags.quick:
        content = results.heading("python -m experiments.supergcn_ranks") | {"title": TITLE, "rows": rows}
        results.write(HERE / results.RESULTS_FILE, content)
        documents.write([HERE / "README.md"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
