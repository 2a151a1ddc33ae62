"""Noise: all dropout of one rank, whose masks depend on seed, time, layer and node, never on the rank."""

from __future__ import annotations

import torch

from sancus.exchange.clean_pass import note_chance
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse, drop_transform
from sancus.exchange.edge_dropout import EdgeDropout
from sancus.exchange.fused_attention import EdgeMasks
from sancus.exchange.mover import Mover
from sancus.kernels.matrix import SparseMatrix
from sancus.kernels.summed import Rowlike, Summed


class Noise:
    """Dropout of own rows, of entries of sparse rows, and of edges."""

    def __init__(self, nodes: torch.Tensor, mover: Mover, seed: int) -> None:
        """`nodes [n_i]` are the user's ids of the own rows."""
        self.nodes = nodes
        self._mover = mover
        self._seed = seed
        self._edges: EdgeDropout | None = None

    def key(self, layer: int) -> DropoutKey:
        """What a mask of this layer depends on now, besides node and column."""
        clock = self._mover.crossing.clock
        return DropoutKey(self._seed, clock.epoch, layer, clock.step)

    def share_now(self, share: float) -> float:
        """The share that is dropped in the present pass: none where it is clean; training's is noted."""
        if not share or self._mover.crossing.clock.silent:
            return 0.0
        note_chance(self._mover.crossing)
        return share

    def drop(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """`h [n_i, f]` with a `share` of its entries zeroed; of a sum, entries of its first part."""
        share = self.share_now(share)
        if not share:
            return h
        if isinstance(h, Summed):
            thinned = self.drop(h.x, layer, share)
            assert isinstance(thinned, torch.Tensor | SparseMatrix)
            return Summed(thinned, h.y, h.embedding)
        if isinstance(h, SparseMatrix):
            return drop_sparse(h, share, self.nodes, self.key(layer))
        assert isinstance(h, torch.Tensor), "rows of samples have noise of their own"
        return drop_dense(h, share, self.nodes, self.key(layer))

    def drop_transform(self, h: Rowlike, layer: int, weight: torch.Tensor, share: float) -> torch.Tensor:
        """`drop(h) W [n_i, f_out]`; of dense rows no dropped copy is kept."""
        share = self.share_now(share)
        if not share or not isinstance(h, torch.Tensor):
            product: torch.Tensor = self.drop(h, layer, share) @ weight
            return product
        return drop_transform(h, share, self.nodes, self.key(layer), weight)

    def edge_masks(self, layer: int, share: float, heads: int) -> EdgeMasks | None:
        """Masks of attention weights, by the owner of the columns; None for no dropout."""
        share = self.share_now(share)
        if not share:
            return None
        return self._edge_dropout().thinned(heads, share, self.key(layer), self._mover.current.present)

    def columns(self) -> torch.Tensor:
        """The user's ids of own and received rows, `[n_i + r_i]`; they cross when they are first needed."""
        return self._edge_dropout().columns()

    def _edge_dropout(self) -> EdgeDropout:
        """Made when it is first needed: the ids of received rows cross then.

        No `cached_property`: Python 3.11 holds a lock meanwhile, on which ranks that are threads would wait.
        """
        if self._edges is None:
            self._edges = EdgeDropout(self.nodes, self._mover.plan.forward, self._mover.group)
        return self._edges
