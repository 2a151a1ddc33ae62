"""The exchange: the two calls that a model is written against.

`propagate(h, layer, weight)` is `Â h W` for linear aggregation under any plan; `rows(h, layer)` returns own
and received rows for anything that weighs edges by content. Both are differentiable. A model never sees
ranks, histories or bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from sancus.codecs.base import Codec
from sancus.codecs.full import FullPrecision
from sancus.comm.base import Transport
from sancus.comm.ledger import Direction
from sancus.errors import UserError
from sancus.exchange.aggregate import Aggregate, AggregateThenTransform, Rows
from sancus.exchange.constant import DenseConstant, SparseConstant, constant_entry, fetch_sparse_rows
from sancus.exchange.decisions import Decisions
from sancus.exchange.delivery import Delivery, Use
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse
from sancus.exchange.history import History
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Leg, Plan
from staleness.base import Policy

Order = Literal["auto", "aggregate-first", "transform-first"]


@dataclass(frozen=True)
class Savings:
    """The exact savings of design §2, each of which changes no number of the result."""

    reuse_input: bool = True  # a constant input crosses once
    order: Order = "auto"  # send the narrower of the two matrices in each direction
    skip_input_gradient: bool = True  # nobody needs the gradient of X


class Exchange:
    """Joins plan × policy × codec × transport for one rank."""

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        policies: Mapping[Direction, Policy],
        codecs: Mapping[Direction, Codec],
        *,
        input: torch.Tensor | SparseMatrix,
        nodes: torch.Tensor,
        input_plan: Plan | None = None,
        savings: Savings | None = None,
        seed: int = 0,
    ) -> None:
        """`input [n_i, F]` are the constant features of the own rows, `nodes [n_i]` the user's ids.

        `input_plan` is a plan that picks rows, for sparse features; by default `plan` itself.
        """
        self.plan = plan
        self.transport = transport
        self.input = input
        self.nodes = nodes
        self.savings = savings or Savings()
        self.decisions = Decisions(policies, transport.size)
        self.history = History()
        self.epoch = -1
        self._seed = seed
        self._input_plan = input_plan or plan
        self._deliveries = {side: Delivery(transport, codec) for side, codec in codecs.items()}
        self._exact_delivery = Delivery(transport, FullPrecision())
        self._exact = False
        self._constant: DenseConstant | SparseConstant | None = None

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.epoch = epoch
        self.decisions.begin_epoch(epoch)

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, everything is fresh and in full precision, and the histories are left alone.

        This is how evaluation runs; its bytes are counted apart.
        """
        before, self._exact = self._exact, True
        try:
            yield
        finally:
            self._exact = before

    def propagate(
        self,
        h: torch.Tensor | SparseMatrix,
        layer: int,
        weight: torch.Tensor | None = None,
        dropout: float = 0.0,
    ) -> torch.Tensor:
        """`Â h`, or `Â h W` with the order chosen and a constant input reused.

        `h [n_i, f_in]`, `weight [f_in, f_out]`. Dropout falls on `h` at the owner, before anything is sent; on a
        reused dense input it falls on `Â h` instead.
        """
        if h is self.input and self.savings.reuse_input:
            return self._constant_input(layer).propagate(weight, dropout, self._key(layer))
        h = self.dropout(h, layer, dropout)
        if weight is None:
            return self._aggregate(self._dense(h), layer)
        order = self._order(h, weight)
        if order == "transform-first":
            return self._aggregate(h @ weight, layer)
        h = self._dense(h)
        if h.requires_grad and self.savings.order == "aggregate-first":
            result: torch.Tensor = AggregateThenTransform.apply(self, layer, h, weight)  # type: ignore[no-untyped-call]
            return result
        return self._aggregate(h, layer) @ weight

    def rows(self, h: torch.Tensor, layer: int, dropout: float = 0.0) -> torch.Tensor:
        """Own rows, then the rows that other owners sent: `[n_i + r_i, f]`, the columns of `local_rows`."""
        if not self.plan.picks_rows:
            raise UserError(
                "this model weighs edges by content, but the plan sends sums; choose --plan halo or --plan block"
            )
        result: torch.Tensor = Rows.apply(self, layer, self._dense(self.dropout(h, layer, dropout)))  # type: ignore[no-untyped-call]
        return result

    @cached_property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `rows` returns, `[n_i, n_i + r_i]`."""
        return self.plan.local_rows()

    def dropout(
        self, h: torch.Tensor | SparseMatrix, layer: int, share: float
    ) -> torch.Tensor | SparseMatrix:
        """Dropout of own rows with the mask that `propagate` and `rows` use at this layer."""
        if not share:
            return h
        if isinstance(h, SparseMatrix):
            return drop_sparse(h, share, self.nodes, self._key(layer))
        return drop_dense(h, share, self.nodes, self._key(layer))

    def aggregate(self, h: torch.Tensor, layer: int, direction: Direction) -> torch.Tensor:
        """`T_i = Â_ii H_i + Σ_{j≠i} R_ij (S_ij H_j)`, or its transpose; outside autograd."""
        leg = self.plan.forward if direction == "forward" else self.plan.backward
        return self._apply(leg, h.contiguous(), *self._use(layer, direction))

    def gather_rows(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """Own rows, then received rows by owner; outside autograd."""
        h = h.contiguous()
        arrivals = self._deliver(self.plan.forward, h, *self._use(layer, "forward"))
        return torch.cat([h, *(payload for _, payload in arrivals)])

    def return_rows(self, gradient: torch.Tensor, layer: int) -> torch.Tensor:
        """Gradients of received rows go back to their owners and add up there; outside autograd."""
        leg, own = self.plan.forward, self.transport.rank
        sizes = [row_map.rows_in for row_map in leg.add]
        sizes[own] = 0
        mine, *received = gradient.contiguous().split([len(self.nodes), *sizes])
        if self.transport.size == 1:
            return mine
        use, delivery = self._use(layer, "backward")
        rows = [0 if rank == own else row_map.rows_out for rank, row_map in enumerate(leg.make)]
        out = mine.clone()
        for sender, part in delivery.all_to_all(received, rows, use):
            leg.make[sender].transposed.add(part, out)
        return out

    def _apply(self, leg: Leg, h: torch.Tensor, use: Use, delivery: Delivery) -> torch.Tensor:
        """One leg: the own product is made while the first payloads travel."""
        arrivals = self._deliver(leg, h, use, delivery)
        out = leg.diagonal.apply(h)
        for owner, payload in arrivals:
            leg.add[owner].add(payload, out)
        return out

    def _deliver(
        self, leg: Leg, h: torch.Tensor, use: Use, delivery: Delivery
    ) -> Iterator[tuple[int, torch.Tensor]]:
        if self.transport.size == 1:
            return iter(())
        own, rows = self.transport.rank, [row_map.rows_in for row_map in leg.add]
        if leg.broadcast:
            return delivery.broadcast(leg.make[own].apply(h), rows, use)
        payloads = [h[:0] if rank == own else row_map.apply(h) for rank, row_map in enumerate(leg.make)]
        return delivery.all_to_all(payloads, rows, use)

    def _use(self, layer: int, direction: Direction) -> tuple[Use, Delivery]:
        if self._exact:
            everyone = [True] * self.transport.size
            return Use(layer, direction, everyone, purpose="evaluation"), self._exact_delivery
        history = self.history if self.decisions.keeps_history(direction) else None
        sends = self.decisions.decide(layer, direction) if self.transport.size > 1 else [False]
        return Use(layer, direction, sends, history), self._deliveries[direction]

    def _aggregate(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        result: torch.Tensor = Aggregate.apply(self, layer, h)  # type: ignore[no-untyped-call]
        return result

    def _dense(self, h: torch.Tensor | SparseMatrix) -> torch.Tensor:
        dense = h.to_dense() if isinstance(h, SparseMatrix) else h
        if torch.is_grad_enabled() and not self.savings.skip_input_gradient and not dense.requires_grad:
            dense = dense.detach().requires_grad_()
        return dense

    def _order(self, h: torch.Tensor | SparseMatrix, weight: torch.Tensor) -> Order:
        """Which product comes first: the one after which fewer columns cross, forward and backward.

        `Â (H W)` sends `f_out` columns forward, and backward too, because `dW = Hᵀ (Âᵀ δ)`. `(Â H) W` sends `f_in`
        forward, and backward only if the gradient of `H` is needed, because `dW = (Â H)ᵀ δ` is local.
        """
        if self.savings.order != "auto":
            return self.savings.order
        wide, narrow = weight.shape
        if torch.is_grad_enabled():
            needs = isinstance(h, torch.Tensor) and h.requires_grad
            wide *= 2 if needs or not self.savings.skip_input_gradient else 1
            narrow *= 2
        return "aggregate-first" if wide < narrow else "transform-first"

    def _constant_input(self, layer: int) -> DenseConstant | SparseConstant:
        if self._constant is None:
            with torch.no_grad():
                self._constant = self._make_constant(layer)
        return self._constant

    def _make_constant(self, layer: int) -> DenseConstant | SparseConstant:
        rank, size = self.transport.rank, self.transport.size
        if isinstance(self.input, SparseMatrix):
            entry = constant_entry(layer, rank)
            return fetch_sparse_rows(self.input, self.nodes, self._input_plan, self.transport, entry)
        use = Use(layer, "forward", [True] * size)
        aggregated = self._apply(self.plan.forward, self.input.contiguous(), use, self._exact_delivery)
        return DenseConstant(aggregated, self.nodes)

    def _key(self, layer: int) -> DropoutKey:
        return DropoutKey(self._seed, self.epoch, layer)
