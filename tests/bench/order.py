"""What the order of rows inside a block is worth: `python -m tests.bench.order synthetic graph.npz`.

Each graph is cut into METIS parts; the first diagonal block is put in every order, and the products with it
are measured in turn. Printed is how many times faster than in the user's order a product is (median).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import get_args

import numpy as np
import scipy.sparse as sp
import torch

from sancus.datasets.open import open_graph
from sancus.graphs.row_order import RowOrder, block_order, hit_rate, permute
from sancus.partitioners.metis import Metis
from tests.bench.cases import Run, products
from tests.bench.table import interleaved

LEAST_WORK = 200_000_000  # entries × columns of one measurement: a small product is repeated


def first_block(
    adjacency: sp.csr_array, assignment: np.ndarray, parts: int, how: RowOrder
) -> tuple[sp.csr_array, float]:
    """`A_00` in an order, and the seconds that finding the order took."""
    start = time.perf_counter()
    order = block_order(adjacency, assignment, parts, how)
    seconds = time.perf_counter() - start
    rows = np.count_nonzero(assignment == 0)
    block = sp.csr_array(permute(adjacency, order)[:rows, :rows])
    block.data = block.data.astype(np.float32)
    return block, seconds


def repeated(run: Run, times: int) -> Run:
    """The run, several times over."""

    def runs() -> None:
        for _ in range(times):
            run()

    return runs


def compare(data: str, flags: argparse.Namespace) -> None:
    """One graph in all orders, at all widths."""
    adjacency = sp.csr_array(open_graph(data).adjacency)
    assignment = Metis().assign(adjacency, flags.parts)
    found = {how: first_block(adjacency, assignment, flags.parts, how) for how in get_args(RowOrder)}
    given = found["given"][0]
    kept = np.array_equal(found["auto"][0].indices, given.indices)
    print(
        f"\n{data}: block of {given.shape[0]:,} rows, {given.nnz:,} entries; "
        f"auto {'keeps the given order' if kept else 'reorders'}"
    )
    for how, (block, seconds) in found.items():
        print(f"  {how:6} hit rate {hit_rate(block):.2f}, found in {seconds:.1f} s")
    for columns in flags.columns:
        dense = torch.randn(given.shape[1], columns)
        times = 1 + LEAST_WORK // (max(1, given.nnz) * columns)
        runs = {
            how: repeated(products(block, dense, ["native"])["native"], times)
            for how, (block, _) in found.items()
        }
        measured = interleaved(runs, flags.rounds)
        gains = {
            how: statistics.median(a / b for a, b in zip(measured["given"], measured[how], strict=True))
            for how in runs
        }
        line = "  ".join(f"{how} {gain:.2f} ×" for how, gain in gains.items() if how != "given")
        milliseconds = statistics.median(measured["given"]) / times * 1e3
        print(f"  {columns} columns: given {milliseconds:.2f} ms, {line}", flush=True)


def main() -> None:
    """Read the flags, print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="as for `sancus train`")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--columns", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rounds", type=int, default=11)
    flags = parser.parse_args()
    for data in flags.data:
        compare(data, flags)


if __name__ == "__main__":
    main()
