"""Beside SANCUS Table 6."""

from __future__ import annotations

from experiments.engine.measured import Measured, span
from experiments.engine.tables import render

RANKS = (2, 4, 8)
PAPER = {  # nodes and features of Table 4, and the cells of Table 6 with their unit
    "Flickr": (89_250, 500, ("170.2", "255.3", "297.9"), "MB"),
    "Reddit": (232_965, 602, ("0.5", "0.8", "0.9"), "GB"),
    "Amazon": (1_598_960, 200, ("1.2", "1.8", "2.1"), "GB"),
    "ogbn-products": (2_449_029, 100, ("0.9", "1.4", "1.6"), "GB"),
}
UNITS = {"MB": 2**20, "GB": 2**30}


def cache_bytes(ranks: int, nodes: int, features: int) -> float:
    """`(p−1)/p · N · 2F · 4`: two layers whose inputs have F columns each, in float32."""
    return (ranks - 1) / ranks * nodes * 2 * features * 4


def text(measured: Measured) -> str:
    """The paper's twelve cells, and what was measured."""
    rows = [["graph", "N", "F", *(f"{ranks} GPUs: paper, formula" for ranks in RANKS)]]
    equal = 0
    for graph, (nodes, features, cells, unit) in PAPER.items():
        digits = len(cells[0].partition(".")[2])
        ours = [f"{cache_bytes(ranks, nodes, features) / UNITS[unit]:.{digits}f}" for ranks in RANKS]
        equal += sum(cell == own for cell, own in zip(cells, ours, strict=True))
        pairs = [f"{cell}, {own} {unit}" for cell, own in zip(cells, ours, strict=True)]
        rows.append([graph, f"{nodes:,}", str(features), *pairs])
    total = len(RANKS) * len(PAPER)
    ratios = [
        1e6 * case["figures"]["history_mb"] / cache_bytes(case["ranks"], *_size(case["labels"]["graph"]))
        for case in measured.cases()
    ]
    return "\n\n".join(
        [
            f"**The paper's own cells.** `(p−1)/p · N · 2F · 4` bytes, two layers with hidden = F: {equal} of its "
            f"{total} cells are the same to the digit that it prints (its MB and GB are powers of two).",
            render(rows),
            f"**What agrees.** With hidden = F the cache that was measured is {span(f'{min(ratios):.3f}', f'{max(ratios):.3f}')} "
            "of that formula (blocks of METIS differ a little in size, and the largest counts). **What does not.** "
            f"Its share of a rank's peak memory is {measured.span('history_share')} and grows with the ranks, since "
            "everything else shrinks; most of the peak here is torch itself.",
        ]
    )


def _size(graph: str) -> tuple[int, int]:
    """Nodes and features of a graph of the experiment, which is a scaled one of the paper's."""
    name, _, scale = graph.partition("@")
    known = {"flickr": "Flickr", "reddit": "Reddit", "products": "ogbn-products"}
    nodes, features, *_ = PAPER[known[name]]
    return round(nodes * float(scale)), features
