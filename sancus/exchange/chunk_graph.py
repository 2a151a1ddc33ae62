"""A chunk of the graph: what a model is called with when rows go through its layers chunk after chunk.

    tables.begin_epoch(epoch)
    for chunk in order:                                   # forward
        graph.enter(chunk)
        logits = model(graph.input, graph)                # [n_ik, C]
    ...                                                   # backward, chunk after chunk in reverse order

Own rows of the chunk at hand, and of those that came before it in this epoch, are fresh at every layer; those
of later chunks are history (`sancus.exchange.chunk_tables`). Backward in reverse order gives exactly the
gradient of this forward pass with history as a constant. Rows are summed before they are multiplied by a
weight, and other ranks' rows cross without it, so that stale rows meet the weights of now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sancus.errors import UserError
from sancus.exchange.attention import attend_rows
from sancus.exchange.chunk_tables import ChunkTables
from sancus.exchange.constant_input import ConstantPart
from sancus.exchange.dropout import edge_mask
from sancus.exchange.noise import Noise
from sancus.kernels.edges import Scorer
from sancus.kernels.masks import EdgeMask
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import R, Rowlike, Summed


class ChunkGraph:
    """The chunk at hand of one rank's rows; a `Neighbourhood` like the whole graph."""

    def __init__(self, tables: ChunkTables) -> None:
        self.tables = tables
        self.chunk = 0  # at hand
        self._savings = tables.whole.savings
        self._stopwatch = tables.whole.group.stopwatch
        self._parts: dict[int, ConstantPart] = {}

    def enter(self, chunk: int) -> None:
        """From now on the own rows are those of a chunk."""
        self.chunk = chunk

    @property
    def input(self) -> torch.Tensor | SparseMatrix:
        """The features of the rows at hand, `[n_ik, F]`; one object a chunk."""
        return self._part.x

    @property
    def local_rows(self) -> SparseMatrix:
        """Rows at hand of `Â` over the rows that `rows` returns, `[n_ik, u]`."""
        return self.tables.selection(self.chunk).matrix

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â h`, or `(Â h) W`."""
        if self._savings.reuse_input and h is self.input:
            return self._part.propagate(layer, weight, dropout)
        with self._stopwatch.at("aggregation"):
            summed: torch.Tensor = ChunkProduct.apply(*self._taken(h, layer, dropout))
        return summed if weight is None else summed @ weight

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rows at hand, then all others that they take from: `[u, f]`, the columns of `local_rows`."""
        tables = self.tables
        if not tables.cut.picks_rows:
            raise UserError(
                "this model weighs edges by content, but the plan sends sums; choose --plan halo or block"
            )
        if self._savings.reuse_input and h is self.input:
            return self._part.rows_of(sources_of(self.tables, self.chunk), layer, weight, dropout)
        rows: torch.Tensor = ChunkRows.apply(*self._taken(h, layer, dropout))
        return rows if weight is None else rows @ weight

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
        """`Σ_j α_ij V_j` with values `V = h W` of the rows at hand and of those that they take from."""
        values = self.rows(h, layer, dropout, weight)
        masks, share = None, self._noise.share_now(edge_dropout)
        if share:
            mask = edge_mask(
                self._noise.nodes,
                sources_of(self.tables, self.chunk),
                scorer.heads,
                share,
                self._noise.key(layer),
            )

            def masks(owner: int) -> EdgeMask:
                return mask

        with self._stopwatch.at("aggregation"):
            own = query(values[: len(self._noise.nodes)])
            return attend_rows(self.local_rows, own, values, scorer, masks)

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`dropout(h) W [n_ik, f_out]` of the rows at hand."""
        return self._noise.drop_transform(h, layer, weight, dropout)

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of the rows at hand, with the mask that the other calls use at this layer."""
        return self._noise.drop(h, layer, share)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all rows, of all ranks, where one chunk is all there is; else refused."""
        if self.tables.cut.chunks > 1:
            raise UserError(
                "the model sums over all rows (batch normalisation), which no chunk has; "
                "choose --norm layer or --chunks 1"
            )
        return self.tables.whole.sum(values)

    def targets(self, h: R) -> R:
        """The rows whose results are wanted: all at hand."""
        return h

    def labelled(self, embedding: torch.Tensor, rate: float) -> Summed:
        """Never: labels are drawn for a pass of all rows."""
        raise UserError("--label-rate needs all rows in one step; leave it out, or choose --schedule full")

    @property
    def _noise(self) -> Noise:
        return self.tables.noises[self.chunk]

    @property
    def _part(self) -> ConstantPart:
        if self.chunk not in self._parts:
            rows = self.tables.cut.rows[self.chunk]
            self._parts[self.chunk] = self.tables.whole.constant.part(rows, self._noise)
        return self._parts[self.chunk]

    def _taken(
        self, h: Rowlike, layer: int, dropout: float
    ) -> tuple[ChunkTables, int, int, torch.Tensor, torch.Tensor, float]:
        """What the functions below take: rows with their dropout, which have a gradient, and without."""
        share = self._noise.share_now(dropout)
        rows = h if isinstance(h, torch.Tensor) else h.to_dense()
        if not rows.requires_grad and torch.is_grad_enabled() and not self._savings.skip_input_gradient:
            rows = rows.detach().requires_grad_()
        dropped = self._noise.drop(rows, layer, dropout)
        assert isinstance(dropped, torch.Tensor)
        return self.tables, layer, self.chunk, dropped, rows.detach(), share


def sources_of(tables: ChunkTables, chunk: int) -> torch.Tensor:
    """The user's ids of the rows that those of a chunk take from, `[u]`."""
    return tables.nodes[tables.selection(chunk).columns]


class ChunkProduct(torch.autograd.Function):
    """`T[C_k] = M_k · table`."""

    @staticmethod
    def forward(
        ctx: Any,
        tables: ChunkTables,
        layer: int,
        chunk: int,
        dropped: torch.Tensor,
        rows: torch.Tensor,
        share: float,
    ) -> torch.Tensor:
        """`dropped [n_ik, f]` to `[n_ik, f]`."""
        ctx.tables, ctx.layer, ctx.chunk = tables, layer, chunk
        return tables.cut.matrices[chunk].multiply(tables.put(layer, chunk, dropped, rows, share))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, torch.Tensor, None, None]:
        """What the columns get is added up; what the chunk's own rows have got by now returns."""
        with ctx.tables.whole.group.stopwatch.at("aggregation"):
            own = ctx.tables.give_back(ctx.layer, ctx.chunk, gradient.contiguous())
        return None, None, None, own, None, None


class ChunkRows(torch.autograd.Function):
    """The rows of the table that a chunk's rows take from, own ones first."""

    @staticmethod
    def forward(
        ctx: Any,
        tables: ChunkTables,
        layer: int,
        chunk: int,
        dropped: torch.Tensor,
        rows: torch.Tensor,
        share: float,
    ) -> torch.Tensor:
        """`dropped [n_ik, f]` to `[u, f]`."""
        ctx.tables, ctx.layer, ctx.chunk = tables, layer, chunk
        return tables.put(layer, chunk, dropped, rows, share)[tables.selection(chunk).columns]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, torch.Tensor, None, None]:
        """Gradients of the rows that were taken."""
        return None, None, None, ctx.tables.give(ctx.layer, ctx.chunk, gradient.contiguous()), None, None


class Recorder:
    """The whole graph, whose layers note their inputs: what history begins with."""

    def __init__(self, tables: ChunkTables, *, zeros: bool) -> None:
        """`zeros`: of the inputs only the shape is noted."""
        self._tables = tables
        self._whole = tables.whole
        self._zeros = zeros

    def __getattr__(self, name: str) -> Any:
        """What does not look at neighbours is the whole graph's."""
        return getattr(self._whole, name)

    def propagate(self, h: Rowlike, layer: int, *arguments: Any, **named: Any) -> torch.Tensor:
        """As the whole graph does it."""
        self._note(h, layer)
        return self._whole.propagate(h, layer, *arguments, **named)

    def rows(self, h: Rowlike, layer: int, *arguments: Any, **named: Any) -> torch.Tensor:
        """As the whole graph does it."""
        self._note(h, layer)
        return self._whole.rows(h, layer, *arguments, **named)

    def attend(self, h: Rowlike, layer: int, *arguments: Any, **named: Any) -> torch.Tensor:
        """As the whole graph does it."""
        self._note(h, layer)
        return self._whole.attend(h, layer, *arguments, **named)

    def _note(self, h: Rowlike, layer: int) -> None:
        if not (self._whole.savings.reuse_input and h is self._whole.input):
            self._tables.remember(h, layer, zeros=self._zeros)
