"""The settings of mini-batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sancus.errors import UserError

ALL = -1  # neighbours of a hop


@dataclass(frozen=True)
class SamplingSettings:
    """Batches of seeds, and the neighbours that each hop draws."""

    batch_size: int = 0
    """Training nodes of a step, over all ranks; 0: the full graph. As many as there are, or more: all."""
    fanout: str = "10"
    """Neighbours drawn a layer, from the seeds outward as in PyG (DGL: reversed): 15,10,5; 10: each; all."""
    sampler: str = "neighbour"
    """How: neighbour, labor (fewer rows), each :by=weight; with --fanout all: cluster, saint (subgraphs)."""

    topology: Literal["mapped", "owner"] = "mapped"
    """Where edges are: mapped, all of them on every rank; owner: ranks draw for each other, on request."""
    feature_cache: str = "none"
    """Rows of other ranks to keep: none, vip:share=0.1 (the likeliest to be read), degree:share=0.1."""
    feature_codec: str = "fp32"
    """Bits on the wire for features that are pulled: fp32, fp16, bf16, int8, int4, int2, int1 or auto."""
    prefetch: int = 2
    """Batches that are drawn, asked for and moved while an earlier one is trained; 0: none."""

    def __post_init__(self) -> None:
        if self.batch_size < 0:
            raise UserError(f"--batch-size {self.batch_size}: must not be negative; 0 is the full graph")
        if self.prefetch < 0:
            raise UserError(f"--prefetch {self.prefetch}: must not be negative; 0 makes no batch ahead")
        self.fanouts(1)

    def fanouts(self, layers: int) -> tuple[int, ...]:
        """One a layer, from the seeds outward; `ALL` is −1. A single one counts for every layer."""
        numbers = [_number(self.fanout, word.strip()) for word in self.fanout.split(",")]
        return tuple(numbers * layers if len(numbers) == 1 else numbers)


def _number(fanout: str, word: str) -> int:
    if word == "all":
        return ALL
    if not word.isdecimal() or int(word) < 1 or int(word) >= 1 << 20:
        raise UserError(
            f"--fanout {fanout}: {word or 'nothing'!r} is no number of neighbours; "
            "give whole numbers from 1 on, or all: 15,10,5"
        )
    return int(word)
