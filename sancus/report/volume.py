"""Bytes in all, which every claim is about: payloads, parameters and agreement; and ratios of them.

A ratio of payloads alone says how good a codec or a policy is, not how much less crosses: what parameters and
agreement cost stays. So ratios are given of all bytes, with that of the payload alone beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sancus.report.run_reader import RunFiles, items, number, section

PURPOSES = ("wire_bytes", "agreement_bytes", "parameter_bytes")


@dataclass(frozen=True)
class Fewer:
    """How many times fewer bytes cross than in something else."""

    in_all: float
    payload: float | None  # None where nothing crosses


def all_bytes(figures: Mapping[str, Any]) -> float | None:
    """Payloads, parameters and agreement of an epoch or of a run; None where one of them is not known."""
    sizes = [number(figures.get(purpose)) for purpose in PURPOSES]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def all_an_epoch(files: RunFiles) -> float | None:
    """The mean of all bytes over the epochs of a run; without epochs, the bill's."""
    sizes = [size for size in map(all_bytes, files.epochs) if size is not None]
    if sizes:
        return sum(sizes) / len(sizes)
    return all_bytes(section(files.run, "communication", "per_epoch"))


def fewer_than_in_full(run: dict[str, Any]) -> Fewer | None:
    """Against the same run with every payload sent, in full precision; parameters and agreement stay.

    None where this is not known, or where codec and policy saved next to nothing.
    """
    total = section(run, "communication", "total")
    whole, wire = all_bytes(total), number(total.get("wire_bytes"))
    full = 0.0
    for stream in items(section(run, "communication").get("streams")):
        raw, sent, saving = (number(stream.get(f"{kind}_bytes")) for kind in ("raw", "wire", "saved"))
        if raw is None or sent is None or saving is None:
            return None
        full += raw * (1 + saving / sent) if sent else raw
    if not whole or wire is None or full < 1.05 * wire:
        return None
    return Fewer((whole - wire + full) / whole, full / wire if wire else None)


def ratio(first: float | None, value: float | None) -> float | None:
    """How many times fewer than the first; None where either is not known, or nothing."""
    return first / value if first and value else None


def times_text(times: float | None) -> str:
    """`24.1 ×`: how many times fewer; a dash where that is not known."""
    if times is None:
        return "–"
    return f"{times:,.0f} ×" if times >= 99.95 else f"{times:.1f} ×" if times >= 9.95 else f"{times:.2f} ×"
