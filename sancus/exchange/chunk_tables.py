"""The rows of every layer, chunk by chunk: fresh where they are there, else history (GNNPipe §3.2-3.4).

For each layer there is a table of columns (see `sancus.plans.chunked`): own rows of all chunks, and what
other ranks send of theirs. `now` is what products read: at first the history of every column, with the
dropout of this epoch; the columns of a chunk are replaced by fresh ones when it comes. `gradient` is where
gradients of columns add up on the way back, chunk after chunk in reverse order: when a chunk's turn comes,
all rows that took its fresh columns have given theirs. What stale columns would get is never read, because
history is a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from sancus.exchange.dropout import drop_dense
from sancus.exchange.edge_dropout import EdgeDropout
from sancus.exchange.full_graph import FullGraph
from sancus.exchange.mover import mover_over
from sancus.exchange.noise import Noise
from sancus.kernels.summed import Rowlike
from sancus.plans.chunked import ChunkedOperator, Selection

HISTORY, GIVEN = "history", "given"


class ChunkTable:
    """One layer of one rank."""

    def __init__(self, history: torch.Tensor | None) -> None:
        """`history [M, f]` are columns without their dropout; None where no column is ever stale."""
        self.history = history
        self.now: torch.Tensor | None = None  # [M, f], from the first use in an epoch to its end
        self.gradient: torch.Tensor | None = None  # [M, f], likewise
        self.before: dict[int, torch.Tensor] = {}  # what a chunk's columns were before it came, if it is kept
        self.given: dict[int, torch.Tensor] = {}  # of stale gradients: what each chunk's rows gave last

    @property
    def nbytes(self) -> int:
        """Memory that is held from epoch to epoch."""
        held = [] if self.history is None else [self.history]
        return sum(tensor.nbytes for tensor in [*held, *self.given.values()])


class ChunkTables:
    """All layers of one rank."""

    def __init__(
        self,
        whole: FullGraph,
        cut: ChunkedOperator,
        seed: int,
        *,
        every: int = 1,
        stale_gradients: bool = False,
        recompute: bool = False,
    ) -> None:
        """`every`: history is that of the last epoch whose number is a multiple of it; `cut` is of `whole`.

        `stale_gradients`: rows whose turn has not come on the way back give the gradients of the epoch
        before, instead of none. `recompute`: what columns were before a chunk came is kept until it leaves.
        """
        self.whole = whole
        self.cut = cut
        self.stale_gradients = stale_gradients
        self.noises = [Noise(whole.nodes[rows], whole.mover, seed) for rows in cut.rows]
        self.filled = cut.chunks == 1  # whether histories have begun; a single chunk needs none
        self.again = False  # whether the chunk at hand was there before in this epoch, and left its columns
        self._recompute = recompute
        self._every = every
        self._keep = True  # whether the rows of this epoch become history
        self._movers = [mover_over(whole.mover, plan) for plan in cut.plans]
        self._tables: dict[int, ChunkTable] = {}
        self._selections: dict[int, Selection] = {}

    def begin_epoch(self, epoch: int) -> None:
        """No chunk has come yet, and what only the last epoch needed is gone."""
        self._keep = (epoch + 1) % self._every == 0
        for table in self._tables.values():
            table.now = table.gradient = None
            table.before = {}

    def leave(self, chunk: int) -> None:
        """All columns are again what they were before a chunk came; nobody will compute it once more."""
        for table in self._tables.values():
            if chunk in table.before:
                assert table.now is not None, "the chunk has come"
                table.now[self.cut.columns[chunk]] = table.before.pop(chunk)

    def remember(self, h: Rowlike, layer: int, *, zeros: bool = False) -> None:
        """All own rows `[n_i, f]` of a layer's input are its history, or as many zeros; all ranks call it."""
        rows = h.detach() if isinstance(h, torch.Tensor) else h.to_dense().detach()
        history = rows.new_zeros(self.cut.width, rows.shape[1])
        if not zeros:
            for chunk, own in enumerate(self.cut.rows):
                history[self.cut.columns[chunk]] = self._columns_of(chunk, layer, rows[own], rows[own])
        self._tables[layer] = ChunkTable(history)

    def put(
        self, layer: int, chunk: int, dropped: torch.Tensor, rows: torch.Tensor, share: float
    ) -> torch.Tensor:
        """The columns of a chunk are fresh now, own rows with their dropout and without; `now [M, f]`.

        What other ranks have of the chunk arrives here.
        """
        table = self._tables.setdefault(layer, ChunkTable(None))
        if table.now is None:
            table.now = self._before(table, layer, share, rows)
        columns = self.cut.columns[chunk]
        if self.again:
            return table.now
        if self._recompute:
            table.before[chunk] = table.now[columns].clone()
        fresh = self._columns_of(chunk, layer, rows, dropped)
        used = torch.cat([dropped, fresh[len(rows) :]]) if share else fresh
        if share and self.cut.picks_rows and self.whole.group.size > 1:  # all ranks alike: ids cross at first
            ids = self.nodes[columns.start + len(rows) : columns.stop]
            used[len(rows) :] = drop_dense(fresh[len(rows) :], share, ids, self.noises[chunk].key(layer))
        table.now[columns] = used
        if self._keep and table.history is not None and table.history is not table.now:
            table.history[columns] = fresh
        return table.now

    def give(self, layer: int, chunk: int, given: torch.Tensor) -> torch.Tensor:
        """Gradients `given [u, f]` of what a chunk's rows took; that of the chunk's own rows `[n_ik, f]`."""
        table = self._tables[layer]
        gradient = gradient_of(self, table, given)
        before = table.given.pop(chunk, None)
        gradient.index_add_(0, self.selection(chunk).columns, given if before is None else given - before)
        if self.stale_gradients:
            table.given[chunk] = given
        return self._returned(layer, chunk, gradient)

    def give_back(self, layer: int, chunk: int, gradient: torch.Tensor) -> torch.Tensor:
        """Gradients `[n_ik, f]` of the products of a chunk; that of the chunk's own rows `[n_ik, f]`."""
        if self.stale_gradients:
            taken = self.selection(chunk).matrix.transposed.multiply(gradient)
            return self.give(layer, chunk, taken)
        total = gradient_of(self, self._tables[layer], gradient)
        self.cut.matrices[chunk].transposed.accumulate(gradient, total)
        return self._returned(layer, chunk, total)

    def selection(self, chunk: int) -> Selection:
        """The columns that a chunk's rows take from; made when it is first needed."""
        if chunk not in self._selections:
            self._selections[chunk] = self.cut.select(chunk)
        return self._selections[chunk]

    @cached_property
    def nodes(self) -> torch.Tensor:
        """The user's ids of all columns `[M]`; those of other ranks' rows cross when first needed."""
        parts = zip(self.noises, self.cut.plans, strict=True)
        group = self.whole.group
        return torch.cat([EdgeDropout(noise.nodes, plan.forward, group).columns() for noise, plan in parts])

    @property
    def nbytes(self) -> int:
        """Memory that is held from epoch to epoch."""
        return sum(table.nbytes for table in self._tables.values())

    def state(self) -> dict[str, torch.Tensor]:
        """Histories, and what is kept of gradients, by layer: `layer/what`."""
        found = {}
        for layer, table in self._tables.items():
            if table.history is not None:
                found[f"{layer}/{HISTORY}"] = table.history
            found |= {f"{layer}/{GIVEN}.{chunk}": given for chunk, given in table.given.items()}
        return found

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with what `state` gave, of the same cut."""
        device, self.filled = self.whole.nodes.device, True
        for name in sorted(state, key=lambda name: HISTORY not in name):
            layer, _, what = name.partition("/")
            if what == HISTORY:
                self._tables[int(layer)] = ChunkTable(state[name].clone().to(device))
            else:
                given = self._tables[int(layer)].given
                given[int(what.removeprefix(f"{GIVEN}."))] = state[name].clone().to(device)

    def _before(self, table: ChunkTable, layer: int, share: float, like: torch.Tensor) -> torch.Tensor:
        """What products read before any chunk has come: the history, with the dropout of this epoch."""
        if table.history is None:
            assert self.cut.chunks == 1, "histories are filled before the first epoch"
            return like.new_empty(self.cut.width, like.shape[1])
        if not share:
            return table.history if self._keep and not self._recompute else table.history.clone()
        if self.cut.picks_rows:
            return drop_dense(table.history, share, self.nodes, self.noises[0].key(layer))
        now = table.history.clone()
        for chunk, noise in enumerate(self.noises):
            own = self.cut.own_columns(chunk)
            now[own] = drop_dense(now[own], share, noise.nodes, noise.key(layer))
        return now

    def _returned(self, layer: int, chunk: int, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of a chunk's own rows, with what other ranks send for them, who get theirs."""
        block = gradient[self.cut.columns[chunk]]
        if self.whole.group.size == 1 or self.whole.crossing.absent("forward"):
            return block[: len(self.noises[chunk].nodes)].clone()
        return self._movers[chunk].return_rows(block, stream_of(layer, chunk, self.cut.chunks))

    def _columns_of(self, chunk: int, layer: int, rows: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
        """The columns of a chunk `[m_k, f]`: own rows, then what arrives; sums are of rows with dropout."""
        if self.whole.group.size == 1:
            return rows
        send = (rows if self.cut.picks_rows else dropped).detach()
        found = self._movers[chunk].gather_rows(send, stream_of(layer, chunk, self.cut.chunks), None)
        columns = self.cut.columns[chunk]
        missing = columns.stop - columns.start - len(found)  # of a policy that sends nothing
        return torch.cat([rows, found[len(rows) :], rows.new_zeros(missing, rows.shape[1])])


def gradient_of(tables: ChunkTables, table: ChunkTable, like: torch.Tensor) -> torch.Tensor:
    """Where gradients add up in this epoch: from zero, or from what rows gave in the epoch before.

    In the order of chunks, not in that of the last epoch, which a resumed run does not know.
    """
    if table.gradient is None:
        table.gradient = like.new_zeros(tables.cut.width, like.shape[1])
        for chunk in sorted(table.given):
            table.gradient.index_add_(0, tables.selection(chunk).columns, table.given[chunk])
    return table.gradient


def stream_of(layer: int, chunk: int, chunks: int) -> int:
    """The number by which rows of a layer and chunk cross."""
    return layer * chunks + chunk
