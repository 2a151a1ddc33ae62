"""How fast neighbours are drawn: `python -m tests.bench.sampling`.

In processor seconds, so that others on the machine count little; with several threads, each samples batches
of its own. The graph is as large as Reddit: 230 k nodes, a power law, 11.5 M entries. Batches have 1024
seeds, and fan-outs are 5, 10 and 15 from the seeds outward.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from sancus.kernels.native.sampling import NativeSampler
from sancus.kernels.sample_torch import TorchSampler
from sancus.kernels.topology import LEAST_OF_SOURCE, REPEATED, UNIFORM, Draw, Topology
from tests.bench.cases import power_law

WAYS = {"neighbour": UNIFORM, "neighbour:replace=true": REPEATED, "labor": LEAST_OF_SOURCE}


def topology(nodes: int, entries: int) -> Topology:
    """A graph whose degrees fall as the square root of the rank."""
    row, col = power_law(np.random.default_rng(0), nodes, entries)
    order = np.lexsort((col, row))
    crow = np.concatenate([[0], np.bincount(row, minlength=nodes).cumsum()])
    ones = torch.ones(nodes, dtype=torch.float64)
    return Topology(torch.from_numpy(crow), torch.from_numpy(col[order].astype(np.int32)), None, ones, None)


def edges_a_second(sample: Callable[[int], int], batches: int) -> float:
    """Of one thread, in its processor time."""
    start, edges = time.thread_time(), 0
    for batch in range(batches):
        edges += sample(batch)
    return edges / (time.thread_time() - start)


def together(one: Callable[[int, int], int], threads: int, batches: int, rounds: int) -> list[float]:
    """Edges a second of so many threads, each at `one(thread, batch)`; the first round is not counted."""
    rates = []
    for turn in range(rounds + 1):
        with ThreadPoolExecutor(threads) as pool:
            found = [pool.submit(edges_a_second, partial(one, thread), batches) for thread in range(threads)]
        if turn:
            rates.append(sum(rate.result() for rate in found))
    return rates


def main() -> None:
    """One line a sampler and number of threads: median and range of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=230_000)
    parser.add_argument("--entries", type=int, default=11_500_000)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    whole = topology(flags.nodes, flags.entries)
    seeds = torch.randperm(flags.nodes, generator=torch.Generator().manual_seed(0)).split(1024)
    for name, way in WAYS.items():
        for kind, threads in ((NativeSampler, 1), (NativeSampler, 2), (TorchSampler, 1)):
            batches = flags.batches if kind is NativeSampler else 1
            if kind is TorchSampler and way == LEAST_OF_SOURCE:
                continue  # row by row: a reference, not a competitor
            samplers = [kind(whole, torch.float32) for _ in range(threads)]

            def one(thread: int, batch: int, way: int = way, samplers: list = samplers) -> int:  # type: ignore[type-arg]
                chosen = seeds[(batch * len(samplers) + thread) % len(seeds)]
                sampled = samplers[thread].sample(chosen, Draw(way, (5, 10, 15), (batch, 1, 2)))
                return sum(len(col) for _, col, _ in sampled.entries)

            rates = [rate / 1e6 for rate in together(one, threads, batches, flags.rounds)]
            middle = statistics.median(rates)
            label = kind.__name__.removesuffix("Sampler").lower()
            print(
                f"{name:24}{label:8}{threads} threads {middle:7.1f} M edges/s "
                f"({min(rates):.1f}-{max(rates):.1f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
