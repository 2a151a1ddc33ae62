"""Mini-batches in a few lines of text: what they read, where it came from, how fast they went."""

from __future__ import annotations

from typing import Any

from sancus.report.run_reader import number, section
from sancus.report.units import count_text, seconds_text, share_text


def batches(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Means an epoch of a run in batches; nothing of another one."""
    facts, mean = section(run, "schedule"), section(run, "schedule", "per_epoch")
    seeds, steps = number(facts.get("training_nodes", facts.get("training_edges"))), number(mean.get("steps"))
    if seeds is None or steps is None:
        return []
    rows = [("seeds", f"{count_text(seeds)} in {count_text(steps)} steps an epoch{_speed(run, seeds)}")]
    edges, read = number(mean.get("sampled_edges")), number(mean.get("input_rows"))
    if edges is not None and read is not None:
        rows.append(("sampled", f"{_whole(edges)} edges, {_whole(read)} input rows an epoch"))
    pulled, cached = number(mean.get("pulled_rows")), number(mean.get("cached_rows")) or 0.0
    if pulled is not None and pulled + cached:
        hits = cached / (pulled + cached)
        rows.append(("rows of other ranks", f"{_whole(pulled)} pulled an epoch; {_from_cache(hits)}"))
    stages = [(name, number(mean.get(f"{name}_seconds"))) for name in ("draw", "pack", "stall")]
    known = [f"{name} {seconds_text(spent)}" for name, spent in stages if spent is not None]
    if known:
        rows.append(("making batches", f"{', '.join(known)} an epoch"))
    return rows


def _speed(run: dict[str, Any], seeds: float) -> str:
    seconds = number(section(run, "result").get("seconds_per_epoch"))
    return f", {_whole(seeds / seconds)} seeds/s" if seconds else ""


def _from_cache(hits: float) -> str:
    return f"hit rate of the cache {share_text(hits)}" if hits else "no cache"


def _whole(mean: float) -> str:
    return count_text(round(mean))
