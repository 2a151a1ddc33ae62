"""Measures all products in turn, round after round, and prints one table: `python -m tests.bench.table`.

What is compared is measured in one process and interleaved, so that a noisy neighbour disturbs all alike:
read the ratios. Two figures describe the noise: the quartiles of each time, and the bandwidth of `c = a + b`
(STREAM add), measured in the same rounds. Gathered bytes are entries × columns × 4.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import scipy.sparse as sp
import torch

from experiments.engine.results import heading, write
from sancus.kernels import bits
from sancus.kernels.native.library import library
from tests.bench.cases import COLUMNS, MAKERS, SHAPES, Run, graph, products, stream_add

RESULTS = Path(__file__).parents[2] / "experiments/kernels/results.json"
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}


def interleaved(
    runs: Mapping[str, Run], rounds: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each run in each round; the first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if turn:
                seconds[name].append(clock() - start)
    return seconds


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def spmm_table(
    matrix: sp.csr_array, shape: str, columns: int, flags: argparse.Namespace
) -> list[dict[str, object]]:
    """One graph and one width: printed, and as rows for `--write`."""
    dense = torch.randn(matrix.shape[1], columns)
    add, moved = stream_add()
    runs = products(matrix, dense, flags.products)
    times = interleaved({**runs, "": add}, flags.rounds, CLOCKS[flags.clock])
    bandwidth = moved / statistics.median(times.pop("")) / 1e9
    gathered = matrix.nnz * columns * 4 / 1e9
    reference = statistics.median(times.get("torch CSR", [float("nan")]))
    threads = torch.get_num_threads()
    print(
        f"\n{shape}, {matrix.shape[0]:,} nodes, {matrix.nnz:,} entries, {columns} columns, "
        f"{threads} threads, {flags.clock} time; STREAM add {bandwidth:.1f} GB/s"
    )
    print(f"{'':17}{'median ms':>10}{'quartiles':>18}{'GB/s':>7}{'of STREAM':>11}{'torch CSR ×':>13}")
    rows: list[dict[str, object]] = []
    for name, seconds in sorted(times.items(), key=lambda item: statistics.median(item[1])):
        low, middle, high = quartiles(seconds)
        rows.append(
            {"shape": shape, "columns": columns, "threads": threads, "clock": flags.clock, "product": name}
            | {"milliseconds": 1e3 * middle, "gathered_gb": gathered / middle, "stream_gb": bandwidth}
        )
        spread = f"{low * 1e3:.0f}-{high * 1e3:.0f}"
        rate = gathered / middle
        shares = f"{rate / bandwidth:11.2f}{reference / middle:13.2f}"
        print(f"{name:17}{middle * 1e3:10.1f}{spread:>18}{rate:7.1f}{shares}", flush=True)
    return rows


def bits_table(rounds: int, columns: int = 256) -> list[dict[str, object]]:
    """Pack and unpack on one thread, in processor time: a neighbour on the same core does not count."""
    rows: list[dict[str, object]] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    x = torch.randn(20_000, columns)
    row_ids, out = torch.arange(len(x)), torch.empty_like(x)
    print(f"\npack and unpack, {len(x):,} rows of {columns}, 1 thread, GB/s of float32 (processor time)")
    for width in bits.WIDTHS:
        packed = bits.pack(x, width, 1, row_ids)
        runs: dict[str, Run] = {
            "pack": partial(bits.pack, x, width, 1, row_ids),
            "unpack": partial(bits.unpack, *packed[:3], width, columns, out),
        }
        times = interleaved(runs, 3 * rounds, time.process_time)
        rates = {name: x.nbytes / statistics.median(times[name]) / 1e9 for name in runs}
        print(f"{width} bits   " + "   ".join(f"{name} {rate:6.2f}" for name, rate in rates.items()))
        rows.append({"bits": width} | rates)
    torch.set_num_threads(threads)
    return rows


def main() -> None:
    """Read the flags, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", type=int, nargs="+", default=list(COLUMNS))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--products", nargs="+", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="processor: for one thread on a busy machine"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the nodes and entries")
    parser.add_argument("--write", action="store_true", help="also write experiments/kernels/results.json")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    packing = bits_table(flags.rounds)
    rows = [
        row
        for shape in flags.shapes
        for matrix in [graph(shape, flags.scale)]
        for columns in flags.columns
        for row in spmm_table(matrix, shape, columns, flags)
    ]
    if flags.write:
        command = shlex.join(["python", "-m", "tests.bench.table", *sys.argv[1:]])
        content = heading(command) | {
            "title": "Kernels",
            "library": library().describe(),
            "packing": packing,
            "rows": rows,
        }
        write(RESULTS, content)


if __name__ == "__main__":
    main()
