"""The seconds of an epoch by what they were spent on, as figures of a run name them."""

from __future__ import annotations

from collections.abc import Callable

from sancus.report.units import seconds_text, share_text

# Figure -> word. They add up to `seconds`; what is waited for and what is agreed is not in `communication`.
PARTS = {
    "aggregation_seconds": "aggregation",
    "dense_seconds": "dense",
    "codec_seconds": "codec",
    "transfer_seconds": "communication",
    "waiting_seconds": "waiting",
    "agreement_seconds": "agreement",
    "other_seconds": "other",
}
COMPUTE = "compute"  # of runs of older versions, which did not split it
Split = dict[str, float]


def split_of(figure: Callable[[str], float | None]) -> Split | None:
    """Word -> seconds, from figures by name; of older runs compute, communication and waiting alone."""
    values = {word: figure(name) for name, word in PARTS.items()}
    parts = {word: value for word, value in values.items() if value is not None}
    if len(parts) == len(PARTS):
        return parts
    compute, comm = figure("compute_seconds"), figure("comm_seconds")
    if compute is None or comm is None:
        return None
    waiting = figure("waiting_seconds") or 0.0
    return {COMPUTE: compute, "communication": max(0.0, comm - waiting), "waiting": waiting}


def split_text(split: Split) -> str:
    """`aggregation 1.2 ms, dense 2.0 ms, codec 0.3 ms (5.9 %), …`: without parts that took no time."""
    whole = sum(split.values())
    texts = []
    for word, seconds in split.items():
        share = f" ({share_text(seconds / whole)})" if word == "codec" and seconds else ""
        texts += [f"{word} {seconds_text(seconds)}{share}"] if seconds else []
    return ", ".join(texts)
