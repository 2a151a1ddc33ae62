"""The machine that ranks make, measured: `sancus probe`.

The link is measured by what training does with it, an exchange between all ranks at once, in messages of
8 bytes and in ones that take a good part of a second: so contention of ranks on one link counts, as does what
the transport costs. The slowest rank is what counts.
"""

from __future__ import annotations

import statistics
import time

import torch

from sancus.advise.estimate import Machine, probe
from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Entry

SMALL, FIRST, LARGEST = 8, 1 << 16, 1 << 25  # bytes of a message
ENOUGH_SECONDS = 0.2  # for one exchange of large messages: much longer than its latency
LEAST_ROUNDS = 5


def flags_of(machine: Machine) -> list[str]:
    """A machine as flags of `sancus estimate`."""
    speeds = ["--spmm", f"{machine.spmm:.3g}", "--gemm", f"{machine.gemm:.3g}"]
    if not machine.latency:
        return speeds
    return ["--link", f"{8 * machine.link / 1e6:.1f}Mbit", "--latency", f"{machine.latency:.3g}", *speeds]


def machine_rows(machine: Machine) -> list[list[str]]:
    """A table to print."""
    alone = not machine.latency
    return [
        ["measured", ""],
        ["link, into a rank", "one rank has none" if alone else f"{8 * machine.link / 1e6:,.4g} Mbit/s"],
        ["latency of a message", "–" if alone else f"{1e6 * machine.latency:,.3g} µs"],
        ["sparse products, a rank", f"{machine.spmm / 1e9:.3g} G multiply-adds/s"],
        ["dense products, a rank", f"{machine.gemm / 1e9:.3g} G multiply-adds/s"],
    ]


def measure(group: Group, seconds: float) -> Machine:
    """The machine that all ranks of a group make, in about so many seconds; the same on all of them."""
    latency, link = _measure_link(group, seconds) if group.size > 1 else (0.0, float("inf"))
    mine = probe("1Gbit", 0.0, None, None)  # its link is given, its speeds are measured
    speeds = torch.tensor([mine.spmm, mine.gemm], dtype=torch.float64)
    spmm, gemm = group.all_gather(speeds, AGREEMENT).amin(dim=0).tolist()
    return Machine(link, latency, spmm, gemm)


def _measure_link(group: Group, seconds: float) -> tuple[float, float]:
    """Seconds a message, and bytes a second into a rank that all others send to."""
    begun, size = time.perf_counter(), FIRST
    small, large = [_exchange(group, SMALL)], [_exchange(group, size)]
    while large[-1] < ENOUGH_SECONDS and size < LARGEST:
        size *= 2
        large = [_exchange(group, size)]
    spent = torch.zeros(1, dtype=torch.float64)
    while len(large) < LEAST_ROUNDS or spent.item() < seconds:
        small.append(_exchange(group, SMALL))
        large.append(_exchange(group, size))
        spent[0] = time.perf_counter() - begun
        spent = group.all_gather(spent, AGREEMENT).amax(dim=0)
    brief, long = statistics.median(small), statistics.median(large)
    peers = group.size - 1
    return brief / peers, peers * size / max(long - brief, 1e-9)


def _exchange(group: Group, size: int) -> float:
    """Seconds until every rank has so many bytes of every other; those of the slowest."""
    counts = [size] * group.size
    counts[group.rank] = 0
    send, receive = torch.zeros(sum(counts), dtype=torch.uint8), torch.empty(sum(counts), dtype=torch.uint8)
    taken = torch.zeros(1, dtype=torch.float64)
    group.all_gather(taken, AGREEMENT)  # all begin together
    started = time.perf_counter()
    group.all_to_all(send, counts, receive, counts, Entry("probe")).wait()
    taken[0] = time.perf_counter() - started
    return float(group.all_gather(taken, AGREEMENT).max())
