"""Bytes in all, which every claim is about: payloads, boundaries, parameters and agreement; ratios of them.

A ratio of payloads alone says how good a codec or a policy is, not how much less crosses: what parameters and
agreement cost stays. So ratios are given of all bytes, with that of the payload alone beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sancus.report.run_reader import RunFiles, items, number, section

PURPOSES = ("wire_bytes", "agreement_bytes", "parameter_bytes")
LATER = ("boundary_bytes", "topology_bytes")  # which an older version did not have


@dataclass(frozen=True)
class Fewer:
    """How many times fewer bytes cross than in something else."""

    in_all: float
    payload: float | None  # None where nothing crosses


def all_bytes(figures: Mapping[str, Any]) -> float | None:
    """Payloads, what stages hand on, parameters and agreement; None where one of them is not known."""
    sizes = [number(figures.get(purpose)) for purpose in PURPOSES]
    known = [size for size in sizes if size is not None]
    others = sum(number(figures.get(purpose)) or 0 for purpose in LATER)
    return sum(known) + others if len(known) == len(sizes) else None


def all_an_epoch(files: RunFiles) -> float | None:
    """All bytes an epoch as the bill has them; of a run without a bill, the mean over its epochs."""
    bill = all_bytes(section(files.run, "communication", "per_epoch"))
    if bill is not None:
        return bill
    sizes = [size for size in map(all_bytes, files.epochs) if size is not None]
    return sum(sizes) / len(sizes) if sizes else None


def fewer_than_in_full(run: dict[str, Any]) -> Fewer | None:
    """Against the same run with every payload sent, and all in full precision; agreement stays.

    None where this is not known, or where codecs and policy saved next to nothing.
    """
    total = section(run, "communication", "total")
    whole, wire = all_bytes(total), number(total.get("wire_bytes"))
    full = 0.0
    for stream in items(section(run, "communication").get("streams")):
        raw, sent, saving = (number(stream.get(f"{kind}_bytes")) for kind in ("raw", "wire", "saved"))
        if raw is None or sent is None or saving is None:
            return None
        full += raw * (1 + saving / sent) if sent else raw
    parameters = number(total.get("parameter_bytes")) or 0.0
    raw_parameters = number(total.get("raw_parameter_bytes")) or parameters
    if not whole or wire is None or (full < 1.05 * wire and raw_parameters < 1.05 * parameters):
        return None
    spared = full - wire + raw_parameters - parameters
    return Fewer((whole + spared) / whole, full / wire if wire else None)


def ratio(first: float | None, value: float | None) -> float | None:
    """How many times fewer than the first; None where either is not known, or nothing."""
    return first / value if first and value else None


def times_text(times: float | None) -> str:
    """`24.1 ×`: how many times fewer; a dash where that is not known."""
    if times is None:
        return "–"
    return f"{times:,.0f} ×" if times >= 99.95 else f"{times:.1f} ×" if times >= 9.95 else f"{times:.2f} ×"
