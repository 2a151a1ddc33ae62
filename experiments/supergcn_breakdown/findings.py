"""Beside SuperGCN's breakdown of an epoch."""

from __future__ import annotations

from experiments.engine.figures import SPLIT
from experiments.engine.measured import Measured


def text(measured: Measured) -> str:
    """Where the time goes, and what int2 changes."""
    base, low, labels = "fp32, post", "int2, pre-post", "int2, pre-post, labels"
    if not measured.each("codec_share"):
        return "The split of an epoch was not measured in this run."
    largest = {}
    for data in measured.labels("data"):
        shares = {name: measured.value(name, data=data, method=base) for name in SPLIT}
        largest[data] = max(shares, key=lambda name: shares[name]).removesuffix("_share")
    return (
        "**What it shows.** With full rows an epoch is mostly "
        + ", ".join(f"{part} on {data}" for data, part in largest.items())
        + f". The quantiser takes {measured.span('codec_share', method=low)} of an epoch with int2 (paper: the smallest part but for "
        f"large runs; Sylvie's Figure 10: 5.9 %), communication falls from {measured.span('transfer_share', method=base)} to "
        f"{measured.span('transfer_share', method=low)}, waiting from {measured.span('waiting_share', method=base)} to "
        f"{measured.span('waiting_share', method=low)}. Epochs are {measured.span('speedup', method=low)} as fast as with post in fp32, "
        f"with labels as input {measured.span('speedup', method=labels)}."
    )
