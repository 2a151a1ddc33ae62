"""The neighbourhood of one batch: what a model is called with in a step.

A sample is a row of hops. The outermost sums neighbours of the features, the next one what the first layer
made of them, and the innermost gives the rows of the seeds: every aggregation of a model takes the next hop
inwards, so a model has as many of them as there are fan-outs. The targets of a hop are the first rows of its
sources, so `h` gets shorter from layer to layer, and a row keeps its place.

A model that does not take `targets` of what it adds to a sum over neighbours (`shrinks`) keeps all rows
instead: those that are no longer targets get no neighbours, and nothing that is wanted depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.exchange.attention import attend_rows
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse, drop_transform, edge_mask
from sancus.exchange.statistics import SumOverRanks
from sancus.kernels.base import Csr, Kernel
from sancus.kernels.edges import Scorer
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.picked import PickedRows, first_rows
from sancus.kernels.summed import Rowlike, Summed
from sancus.kernels.topology import Sampled

R = TypeVar("R", bound=Rowlike)


@dataclass(frozen=True)
class Surroundings:
    """What all batches of a run have in common."""

    group: Group
    kernel: Kernel
    seed: int
    shrinks: bool  # whether the model gets along with fewer rows from layer to layer
    fanout: str  # as it was typed, for messages


class SampledBatch:
    """A batch of seeds and the neighbours that were drawn for it, hop by hop."""

    def __init__(self, sampled: Sampled, ids: torch.Tensor, rows: PickedRows, around: Surroundings) -> None:
        """`ids [n]` are the user's ids of the sampled nodes, `rows [n, F]` their features."""
        self.ids = ids
        self.counts = sampled.counts
        self._rows = rows
        self._around = around
        self._hops = [
            _matrix(entries, self.counts[hop : hop + 2], len(ids), around)
            for hop, entries in enumerate(sampled.entries)
        ]
        self._left = len(self._hops)  # hops that no aggregation has taken yet

    @property
    def input(self) -> torch.Tensor | SparseMatrix | PickedRows:
        """The features of all nodes of the sample; a model that `shrinks` reads them where they stand."""
        return self._rows if self._around.shrinks else self._rows.to_rows()

    @property
    def local_rows(self) -> SparseMatrix:
        """The hop that was taken last: its targets over its sources."""
        return self._hops[min(self._left, len(self._hops) - 1)]

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â dropout(h)`, or `Â dropout(h) W`, of the next hop; the cheaper product comes first."""
        hop = self._next()
        if isinstance(h, PickedRows) and h.dense and not dropout:
            with self._around.group.stopwatch.at("aggregation"):
                summed = h.first(hop.shape[1]).summed_by(hop)
            return summed if weight is None else summed @ weight
        h = _sources(h, hop)
        if weight is not None and (not isinstance(h, torch.Tensor) or _transforms_first(hop, weight)):
            return self._summed(hop, self.transform(h, layer, weight, dropout))
        dropped = self.dropout(h, layer, dropout)
        summed = self._summed(hop, dropped if isinstance(dropped, torch.Tensor) else dropped.to_dense())
        return summed if weight is None else summed @ weight

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sources of the next hop, its targets first: rows of `dropout(h)`, or of `dropout(h) W`."""
        h = _sources(h, self._next())
        if weight is not None:
            return self.transform(h, layer, weight, dropout)
        dropped = self.dropout(h, layer, dropout)
        return dropped if isinstance(dropped, torch.Tensor) else dropped.to_dense()

    def attend(
        self,
        h: Rowlike,
        layer: int,
        weight: torch.Tensor,
        query: Callable[[torch.Tensor], torch.Tensor],
        scorer: Scorer,
        *,
        dropout: float = 0.0,
        edge_dropout: float = 0.0,
    ) -> torch.Tensor:
        """`Σ_j α_ij V_j` over the drawn neighbours, `α_i` their softmax: see `Neighbourhood.attend`."""
        values = self.rows(h, layer, dropout, weight)
        hop = self.local_rows

        def mask(_: int) -> EdgeMask:
            ends = self.ids[: hop.shape[0]], self.ids[: hop.shape[1]]
            return edge_mask(*ends, scorer.heads, edge_dropout, self._key(layer))

        with self._around.group.stopwatch.at("aggregation"):
            own = query(values[: hop.shape[0]])
            return attend_rows(hop, own, values, scorer, mask if edge_dropout else None)

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`dropout(h) W` of rows of the sample, the first ones; no dropped copy of dense ones is kept."""
        h = h.to_rows() if isinstance(h, PickedRows) else h
        if dropout and isinstance(h, torch.Tensor):
            return drop_transform(h, dropout, self.ids[: len(h)], self._key(layer), weight)
        product: torch.Tensor = self.dropout(h, layer, dropout) @ weight
        return product

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of rows of the sample, by the mask of each node that the whole graph has, too."""
        if not share:
            return h
        h = h.to_rows() if isinstance(h, PickedRows) else h
        assert not isinstance(h, Summed)
        ids, key = self.ids[: h.shape[0]], self._key(layer)
        drop: Any = drop_sparse if isinstance(h, SparseMatrix) else drop_dense
        dropped: Rowlike = drop(h, share, ids, key)
        return dropped

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of `values [k]`; every rank must call it."""
        result: torch.Tensor = SumOverRanks.apply(self._around.group, values)
        return result

    def targets(self, h: R) -> R:
        """The first rows of `h`: those that are still wanted after the last aggregation."""
        if not self._around.shrinks and self._left:
            return h
        count = self.counts[self._left]
        wanted: Any
        if isinstance(h, PickedRows):
            wanted = h.first(count).to_rows()
        elif isinstance(h, SparseMatrix):
            wanted = first_rows(h, count)
        else:
            assert isinstance(h, torch.Tensor), "labels are not input of a batch"
            wanted = h[:count]
        kept: R = wanted
        return kept

    def labelled(self, embedding: torch.Tensor, rate: float) -> Summed:
        """Refused: which labels are shown is drawn for all rows."""
        raise UserError("--label-rate needs all rows in one step; leave it out, or --batch-size")

    def of_seeds(self, logits: torch.Tensor) -> torch.Tensor:
        """The rows of the seeds `[s, C]`, of what a model returned; it must have taken every hop."""
        if self._left:
            raise UserError(
                f"--fanout {self._around.fanout} draws {len(self._hops)} hops, and the model aggregates "
                f"{len(self._hops) - self._left} times; give one fan-out for each of them"
            )
        return logits[: self.counts[0]]

    def _next(self) -> SparseMatrix:
        """The next hop inwards."""
        if not self._left:
            raise UserError(
                f"--fanout {self._around.fanout} draws {len(self._hops)} hops, and the model aggregates more "
                "often; give one fan-out for each time"
            )
        self._left -= 1
        return self._hops[self._left]

    def _summed(self, hop: SparseMatrix, h: torch.Tensor) -> torch.Tensor:
        with self._around.group.stopwatch.at("aggregation"):
            return hop @ h

    def _key(self, layer: int) -> DropoutKey:
        clock = self._around.group.clock
        return DropoutKey(self._around.seed, clock.epoch, layer, clock.step)


def _matrix(
    entries: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    counts: tuple[int, ...],
    nodes: int,
    around: Surroundings,
) -> SparseMatrix:
    """A hop `[targets, sources]`; where all rows are kept, `[n, n]` with empty rows after the targets."""
    crow, col, value = entries
    targets, sources = counts
    if not around.shrinks:
        crow = torch.cat([crow, crow[-1:].expand(nodes - targets)])
        targets = sources = nodes
    return SparseMatrix(Csr(crow, col, value, (targets, sources)), around.kernel)


def _sources(h: Rowlike, hop: SparseMatrix) -> Rowlike:
    """The rows of `h` that a hop reads."""
    if isinstance(h, PickedRows):
        return h.first(hop.shape[1]).to_rows()
    if isinstance(h, SparseMatrix):
        return first_rows(h, hop.shape[1])
    assert isinstance(h, torch.Tensor), "labels are not input of a batch"
    return h[: hop.shape[1]]


def _transforms_first(hop: SparseMatrix, weight: torch.Tensor) -> bool:
    """Whether `Â (h W)` takes fewer multiplications than `(Â h) W`."""
    (targets, sources), (f_in, f_out) = hop.shape, weight.shape
    return hop.nnz * f_out + sources * f_in * f_out < hop.nnz * f_in + targets * f_in * f_out
