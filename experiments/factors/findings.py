"""What each factor is worth."""

from __future__ import annotations

from experiments.engine.measured import Measured

EVERYTHING = "savings + partitioner + plan + staleness + codec"


def text(measured: Measured) -> str:
    """Alone, in pairs, all together; all bytes, and the payload beside it."""
    alone = ["savings", "partitioner", "plan", "staleness", "codec"]
    words = ", ".join(
        f"{name} {measured.span('fewer', factors=name)} ({measured.span('payload_fewer', factors=name)})"
        for name in alone
    )
    pair = "partitioner + plan"
    return (
        "**What it shows.** How many times fewer bytes cross in all, and in brackets the payload alone, on random parts of whole "
        f"blocks: {words}. Pairs multiply where they do not cut into the same bytes: partitioner and plan together "
        f"{measured.span('payload_fewer', factors=pair)} in the payload. All five: {measured.span('fewer', factors=EVERYTHING)} in all "
        f"({measured.span('payload_fewer', factors=EVERYTHING)}): what is left is the sum of the gradients of the weights. Time follows "
        f"less and less: an epoch is {measured.span('speedup', factors='savings')} sooner with the savings, "
        f"{measured.span('speedup', factors=EVERYTHING)} with everything, since next to nothing is left to save and the other factors "
        "take time themselves. One run a row: what they cost in accuracy is measured elsewhere, with several seeds."
    )
