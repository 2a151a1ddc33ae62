"""A whole graph as samplers read it, what they are asked to draw, and what they give."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

UNIFORM, REPEATED, LEAST_OF_PAIR, LEAST_OF_SOURCE = range(4)  # ways to draw, as in native/sample.c


@dataclass(frozen=True, eq=False)
class Topology:
    """All entries of `Â [N, N]`: `Â_vu = left_v A_vu right_u`, and a diagonal apart.

    Rows and columns are the user's node ids, columns ascend: so a position in a row is the same on every rank
    and for every partition. Where there is a `diagonal`, the rows hold no diagonal entries.
    """

    crow: torch.Tensor  # [N + 1] int64
    col: torch.Tensor  # [E] int32, or int64 where N > 2^31 - 1
    weight: torch.Tensor | None  # [E] float64, the entries of A; None: all 1
    left: torch.Tensor  # [N] float64
    right: torch.Tensor | None  # [N] float64; None: all 1
    diagonal: torch.Tensor | None = None  # [N] float64, the diagonal of Â: kept whatever is drawn

    def __post_init__(self) -> None:
        real = [t for t in (self.weight, self.left, self.right, self.diagonal) if t is not None]
        assert all(t.dtype == torch.float64 and t.is_contiguous() for t in real)
        assert self.crow.is_contiguous() and self.col.is_contiguous()
        assert self.crow.dtype == torch.int64 and len(self.left) == self.nodes
        assert int(self.crow[-1]) == len(self.col) and self.nodes < 1 << 32

    @property
    def nodes(self) -> int:
        """`N`."""
        return len(self.crow) - 1

    @cached_property
    def degrees(self) -> torch.Tensor:
        """`[N]` entries of every row, without the diagonal."""
        return self.crow[1:] - self.crow[:-1]

    @cached_property
    def rows(self) -> torch.Tensor:
        """`[E]` the row of every entry."""
        return torch.arange(self.nodes).repeat_interleave(self.degrees)

    def sums(self) -> torch.Tensor:
        """`[N]` of the absolute entries of `A` in every row."""
        weight = torch.ones(len(self.col), dtype=torch.float64) if self.weight is None else self.weight.abs()
        return torch.zeros(self.nodes, dtype=torch.float64).index_add_(0, self.rows, weight)

    @cached_property
    def largest_degree(self) -> int:
        """The longest row."""
        return int(self.degrees.max()) if self.nodes else 0


@dataclass(frozen=True)
class Draw:
    """How many neighbours a hop draws, in which way, and of which random numbers."""

    way: int
    fanouts: tuple[int, ...]  # from the seeds outward; -1: all
    keys: tuple[int, ...]  # one a hop, unsigned 64 bits
    by_weight: bool = False


@dataclass(frozen=True, eq=False)
class Sampled:
    """Hops from the seeds outward. The targets of a hop are a prefix of its sources, and those of `nodes`."""

    nodes: torch.Tensor  # [n] int64 ids: seeds, then what each hop found
    counts: tuple[int, ...]  # seeds, then nodes after each hop
    entries: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]  # crow, col, value of every hop
