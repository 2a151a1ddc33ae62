"""The exchange: the two calls that a model is written against.

`propagate(h, layer, weight)` is `Â h W` for linear aggregation under any plan; `rows(h, layer)` returns own
and received rows for anything that weighs edges by content. Both are differentiable. A model never sees
ranks, histories or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from sancus.codecs.base import Codec
from sancus.comm.group import Group
from sancus.comm.ledger import Direction
from sancus.errors import UserError
from sancus.exchange.aggregate import Aggregate, AggregateThenTransform, Rows
from sancus.exchange.agreement import Agree
from sancus.exchange.attention import BlockAttention, Factors, Scorer, attend_rows
from sancus.exchange.constant import DenseConstant, DenseRows, SparseConstant, fetch_sparse_rows
from sancus.exchange.crossing import Crossing, CrossingSettings
from sancus.exchange.delivery import Arrivals, Outgoing, Use
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse, drop_transform
from sancus.exchange.edge_dropout import EdgeDropout
from sancus.exchange.labels import LabelDraw, Labelled
from sancus.exchange.legs import needed, returned
from sancus.exchange.statistics import SumOverRanks
from sancus.exchange.streaming import BlockStream
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Leg, Plan
from sancus.staleness.base import Policy

Order = Literal["auto", "aggregate-first", "transform-first"]
Rowlike = torch.Tensor | SparseMatrix | Labelled


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
        group: Group,
        policies: Mapping[Direction, Policy],
        codecs: Mapping[Direction, Codec],
        *,
        input: torch.Tensor | SparseMatrix,
        nodes: torch.Tensor,
        labels: SparseMatrix | None = None,
        input_plan: Plan | None = None,
        savings: Savings | None = None,
        agree: Agree = "layer",
        clip: float | None = None,
        feedback: bool = False,
        configuration: bytes = b"",
        seed: int = 0,
        epochs: int = 1,
    ) -> None:
        """`input [n_i, F]` are the constant features of the own rows, `nodes [n_i]` the user's ids, `labels
        [n_i, C]` the training labels among them, for models that take labels as input.

        `input_plan` is a plan that picks rows, for sparse features; by default `plan` itself. `clip` is
        the threshold `th` of Algorithm 3's GRADIENT_CLIP. `feedback` adds what a codec left out of a send to
        the next. `configuration` identifies the run in agreements; `epochs` is how many will be trained.
        """
        self.plan = plan
        self.group = group
        self.input = input
        self.nodes = nodes
        self._labels = labels
        self.savings = savings or Savings()
        self.crossing = Crossing(
            group,
            policies,
            codecs,
            needed(plan, group, nodes.device),
            CrossingSettings(agree, feedback, configuration, seed, epochs),
            nodes.device,
        )
        self._clip = clip
        self._seed = seed
        self._input_plan = input_plan or plan
        self._orders: dict[int, Order] = {}  # chosen in training; evaluation follows
        self._constants: dict[bool, DenseConstant | SparseConstant] = {}
        self._constant_rows: dict[bool, DenseRows] = {}
        self._label_constants: dict[bool, SparseConstant] = {}

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.group.begin_epoch(epoch)
        self.crossing.begin_epoch()

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Inside, everything is fresh and in full precision, and the histories are left alone.

        This is how evaluation runs; its bytes are counted apart.
        """
        with self.group.clock.evaluating():
            yield

    def propagate(
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â h`, or `Â h W` with the order chosen and a constant input reused.

        `h [n_i, f_in]`, `weight [f_in, f_out]`. Dropout falls on `h` at the owner, before anything is sent;
        on a reused dense input it falls on `Â h` instead.
        """
        if self.savings.reuse_input and (h.x if isinstance(h, Labelled) else h) is self.input:
            known = self._constant_input(layer).propagate(weight, dropout, self._key(layer))
            return (
                known + h.propagate(self._label_constant(layer), weight) if isinstance(h, Labelled) else known
            )
        clean = h if dropout and self.crossing.drifts("forward") else None
        if weight is not None and self._order(h, weight, layer) == "transform-first":
            narrow = self.transform(h, layer, weight, dropout)
            return self._aggregate(narrow, layer, None if clean is None else clean @ weight)
        h, clean = self._dense(self.dropout(h, layer, dropout)), None if clean is None else self._dense(clean)
        if weight is None:
            return self._aggregate(h, layer, clean)
        if h.requires_grad and self.savings.order == "aggregate-first":
            result: torch.Tensor = AggregateThenTransform.apply(self, layer, h, weight, clean)
            return result
        return self._aggregate(h, layer, clean) @ weight

    def rows(
        self, h: Rowlike, layer: int, dropout: float = 0.0, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Own rows, then the rows that other owners sent: `[n_i + r_i, f]`, the columns of `local_rows`.

        With a `weight [f_in, f_out]`, rows of `h W`. Where a plan picks rows, those of the input cross once.
        """
        self._check_rows()
        if h is self.input and self.savings.reuse_input and not self.plan.forward.broadcast:
            return self._rows_of_input(layer).rows(weight, dropout, self._key(layer))
        values, clean = self._values(h, layer, dropout, weight)
        result: torch.Tensor = Rows.apply(self, layer, values, clean)
        return result

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
        """`Σ_j α_ij V_j` with values `V = h W`, own and received: `rows`, and a softmax over a row's edges.

        `h [n_i, f_in]`, `weight [f_in, heads·d]` to `[n_i, heads·d]`. `query` makes `[n_i, k]` of the own
        values, `scorer` keys of all values and the score of an edge. `edge_dropout` falls on `α`. Where
        blocks come owner after owner, they are used as they come: see `sancus.exchange.attention`.
        """
        self._check_rows()
        factors: Factors | None = None
        if edge_dropout:
            self.crossing.noisy = True
            factors = self._edges.thinned(scorer.heads, edge_dropout, self._key(layer))
        if not self.plan.forward.broadcast:
            rows = self.rows(h, layer, dropout, weight)
            return attend_rows(self.local_rows, query(rows[: len(self.nodes)]), rows, scorer, factors)
        values, clean = self._values(h, layer, dropout, weight)
        blocks = BlockStream(self, layer, clean)
        result: torch.Tensor = BlockAttention.apply(
            blocks, scorer, factors, values, query(values), *scorer.parameters()
        )
        return result

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks of `values [k]`, for statistics of all rows; every rank must call it."""
        result: torch.Tensor = SumOverRanks.apply(self.group, values)
        return result

    def _check_rows(self) -> None:
        if not self.plan.picks_rows:
            raise UserError(
                "this model weighs edges by content, but the plan sends sums; "
                "choose --plan halo or --plan block"
            )

    def labelled(self, embedding: torch.Tensor, rate: float) -> Labelled:
        """The input with the embedded labels `embedding [C, F]` of a share of the training nodes."""
        assert self._labels is not None, "made for a model that takes labels"
        draw = self.label_draw(rate)
        return Labelled(self.input, draw.keep(self._labels, self.nodes), embedding, draw)

    def label_draw(self, rate: float) -> LabelDraw:
        """The training nodes whose labels are input in this epoch."""
        return LabelDraw(rate, self._seed, self.crossing.clock.epoch)

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `rows` returns, `[n_i, n_i + r_i]`."""
        return self.plan.forward.diagonal.matrix if self.crossing.absent("forward") else self._all_local_rows

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of own rows with the mask that `propagate` and `rows` use at this layer."""
        if not share:
            return h
        self.crossing.noisy = True
        if isinstance(h, Labelled):
            thinned = self.dropout(h.x, layer, share)
            assert not isinstance(thinned, Labelled)
            return Labelled(thinned, h.y, h.embedding, h.draw)
        if isinstance(h, SparseMatrix):
            return drop_sparse(h, share, self.nodes, self._key(layer))
        return drop_dense(h, share, self.nodes, self._key(layer))

    def transform(self, h: Rowlike, layer: int, weight: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        """`dropout(h) W [n_i, f_out]` of own rows, with the mask of this layer; no dropped copy is kept."""
        if not dropout or not isinstance(h, torch.Tensor):
            product: torch.Tensor = self.dropout(h, layer, dropout) @ weight
            return product
        self.crossing.noisy = True
        return drop_transform(h, dropout, self.nodes, self._key(layer), weight)

    def aggregate(
        self, h: torch.Tensor, layer: int, direction: Direction, clean: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`T_i = Â_ii H_i + Σ_{j≠i} R_ij (S_ij H_j)`, or its transpose; outside autograd."""
        leg = self.plan.forward if direction == "forward" else self.plan.backward
        if direction == "backward":
            h = self._clipped(h)
        h = h.contiguous()
        return _sum(leg, h, self._deliver(leg, h, layer, direction, clean))

    def gather_rows(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> torch.Tensor:
        """Own rows, then received rows by owner; outside autograd."""
        return torch.cat([h, *(payload for _, payload in self.arrivals(h, layer, clean))])

    def arrivals(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> Arrivals:
        """Other owners' rows, as they arrive; outside autograd."""
        return self._deliver(self.plan.forward, h.contiguous(), layer, "forward", clean)

    def stepwise_use(self, layer: int) -> Use | None:
        """How gradients return owner after owner; None where policy or clip looks at all of them at once."""
        return self.crossing.stepwise_use(layer) if self._clip is None else None

    def return_rows(self, gradient: torch.Tensor, layer: int) -> torch.Tensor:
        """Gradients of received rows go back to their owners and add up there; outside autograd."""
        leg, own = self.plan.forward, self.group.rank
        gradient = self._clipped(gradient).contiguous()
        if self.group.size == 1 or self.crossing.absent("forward"):
            return gradient
        sizes = [0 if rank == own else row_map.rows_in for rank, row_map in enumerate(leg.add)]
        mine, *payloads = gradient.split([len(self.nodes), *sizes])
        back = returned(leg, gradient.device)
        out = mine.clone()
        for sender, part in self.crossing.deliver(back, Outgoing(payloads, back.weight), layer, "backward"):
            back.add[sender].add(part, out)
        return out

    def _deliver(
        self, leg: Leg, h: torch.Tensor, layer: int, direction: Direction, clean: torch.Tensor | None
    ) -> Arrivals:
        if self.group.size == 1:
            return iter(())
        outgoing = self._outgoing(leg, h)
        return self.crossing.deliver(
            leg, outgoing, layer, direction, None if clean is None else self._outgoing(leg, clean)
        )

    def _outgoing(self, leg: Leg, h: torch.Tensor) -> Outgoing:
        """What this rank would send: one payload for all, or one for each receiver."""
        own = self.group.rank
        if leg.broadcast:
            return Outgoing([leg.make[own].apply(h)], [leg.weight[own]])
        payloads = [h[:0] if rank == own else row_map.apply(h) for rank, row_map in enumerate(leg.make)]
        return Outgoing(payloads, leg.weight)

    def _aggregate(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> torch.Tensor:
        detached = None if clean is None else clean.detach()
        result: torch.Tensor = Aggregate.apply(self, layer, h, detached)
        return result

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        """GRADIENT_CLIP of Algorithm 3: the L2 norm of what this rank holds is kept to `th_i = √p · th`."""
        if self._clip is None:
            return gradient
        limit = self._clip * self.group.size**0.5
        norm = gradient.norm().item()
        return gradient * (limit / norm) if norm > limit else gradient

    def _dense(self, h: Rowlike) -> torch.Tensor:
        dense = h if isinstance(h, torch.Tensor) else h.to_dense()
        if torch.is_grad_enabled() and not self.savings.skip_input_gradient and not dense.requires_grad:
            dense = dense.detach().requires_grad_()
        return dense

    def _order(self, h: Rowlike, weight: torch.Tensor, layer: int) -> Order:
        """Which product comes first: the one after which fewer columns cross, forward and backward.

        `Â (H W)` sends `f_out` columns forward, and backward too, because `dW = Hᵀ (Âᵀ δ)`. `(Â H) W` sends
        `f_in` forward, and backward only if the gradient of `H` is needed, because `dW = (Â H)ᵀ δ` is local.
        """
        if self.savings.order != "auto":
            return self.savings.order
        if self.group.clock.exact and layer in self._orders:
            return self._orders[layer]
        wide, narrow = weight.shape
        if torch.is_grad_enabled():
            needs = isinstance(h, Labelled) or (isinstance(h, torch.Tensor) and h.requires_grad)
            wide *= 2 if needs or not self.savings.skip_input_gradient else 1
            narrow *= 2
        order: Order = "aggregate-first" if wide < narrow else "transform-first"
        if not self.group.clock.exact:
            self._orders[layer] = order
        return order

    def _constant_input(self, layer: int) -> DenseConstant | SparseConstant:
        """The constant of this mode: training under `drop` lacks remote rows that evaluation has."""
        absent = self.crossing.absent("forward")
        if absent not in self._constants:
            with torch.no_grad():
                self._constants[absent] = self._make_constant(layer, absent=absent)
        return self._constants[absent]

    def _make_constant(self, layer: int, *, absent: bool) -> DenseConstant | SparseConstant:
        leg, x = self.plan.forward, self.input
        if isinstance(x, SparseMatrix):
            return self._sparse_constant(x, layer, absent=absent)
        x = x.contiguous()
        arrivals: Arrivals = iter(())
        if self.group.size > 1 and not absent:
            arrivals = self.crossing.once(leg, self._outgoing(leg, x), layer)
        return DenseConstant(_sum(leg, x, arrivals), self.nodes)

    def _rows_of_input(self, layer: int) -> SparseConstant | DenseRows:
        """Own and received rows of the constant input, of this mode; `plan` picks them."""
        absent, x = self.crossing.absent("forward"), self.input
        if isinstance(x, SparseMatrix):
            constant = self._constant_input(layer)
            assert isinstance(constant, SparseConstant)
            return constant
        if absent not in self._constant_rows:
            arrivals: Arrivals = iter(())
            if self.group.size > 1 and not absent:
                arrivals = self.crossing.once(self.plan.forward, self._outgoing(self.plan.forward, x), layer)
            rows = torch.cat([x, *(payload for _, payload in arrivals)])
            self._constant_rows[absent] = DenseRows(rows, self._edges.columns()[: len(rows)])
        return self._constant_rows[absent]

    @cached_property
    def _edges(self) -> EdgeDropout:
        return EdgeDropout(self.nodes, self.plan.forward, self.group)

    def _values(
        self, h: Rowlike, layer: int, dropout: float, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """`dropout(h) W`, and the same without dropout where drift is measured."""
        clean = h if dropout and self.crossing.drifts("forward") else None
        if weight is None:
            dropped = self.dropout(h, layer, dropout)
            return self._dense(dropped), None if clean is None else self._dense(clean).detach()
        values = self.transform(h, layer, weight, dropout)
        return values, None if clean is None else (clean @ weight).detach()

    def _label_constant(self, layer: int) -> SparseConstant:
        """Own and received rows of the training labels, of this mode as for the input."""
        absent = self.crossing.absent("forward")
        if absent not in self._label_constants:
            assert self._labels is not None
            self._label_constants[absent] = self._sparse_constant(self._labels, layer, absent=absent)
        return self._label_constants[absent]

    def _sparse_constant(self, x: SparseMatrix, layer: int, *, absent: bool) -> SparseConstant:
        if absent:
            return SparseConstant(x, self.nodes, self.plan.forward.diagonal.matrix)
        entry = self.crossing.once_use(layer).entry(self.group.rank)
        return fetch_sparse_rows(x, self.nodes, self._input_plan, self.group, entry)

    @cached_property
    def _all_local_rows(self) -> SparseMatrix:
        return self.plan.local_rows()

    def _key(self, layer: int) -> DropoutKey:
        return DropoutKey(self._seed, self.crossing.clock.epoch, layer)


def _sum(leg: Leg, h: torch.Tensor, arrivals: Arrivals) -> torch.Tensor:
    """Own product, made while the first payloads travel, plus the product of each payload."""
    out = leg.diagonal.apply(h)
    for owner, payload in arrivals:
        leg.add[owner].add(payload, out)
    return out
