"""The exchange: the two calls that a model is written against.

`propagate(h, layer, weight)` is `Â h W` for linear aggregation under any plan; `rows(h, layer)` returns own
and received rows for anything that weighs edges by content. Both are differentiable. A model never sees
ranks, histories or bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from sancus.codecs.base import Codec
from sancus.codecs.full import FullPrecision
from sancus.comm.base import Transport
from sancus.comm.ledger import DIRECTIONS, Direction, Stream
from sancus.errors import UserError
from sancus.exchange.aggregate import Aggregate, AggregateThenTransform, Rows
from sancus.exchange.agreement import Agree, Agreement
from sancus.exchange.constant import DenseConstant, SparseConstant, fetch_sparse_rows
from sancus.exchange.decisions import Decisions
from sancus.exchange.delivery import Arrivals, Delivery, Use
from sancus.exchange.drift import DriftMeter
from sancus.exchange.dropout import DropoutKey, drop_dense, drop_sparse
from sancus.exchange.history import History
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Leg, Plan
from staleness.base import Norm, Policy

Order = Literal["auto", "aggregate-first", "transform-first"]
Rowlike = torch.Tensor | SparseMatrix


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
        input: Rowlike,
        nodes: torch.Tensor,
        input_plan: Plan | None = None,
        savings: Savings | None = None,
        agree: Agree = "layer",
        clip: float | None = None,
        configuration: bytes = b"",
        seed: int = 0,
    ) -> None:
        """`input [n_i, F]` are the constant features of the own rows, `nodes [n_i]` the user's ids.

        `input_plan` is a plan that picks rows, for sparse features; by default `plan` itself. `clip` is
        the threshold `th` of Algorithm 3's GRADIENT_CLIP. `configuration` identifies the run in agreements.
        """
        self.plan = plan
        self.transport = transport
        self.policies = policies
        self.input = input
        self.nodes = nodes
        self.savings = savings or Savings()
        self.decisions = Decisions(transport.size)
        self.history = History()
        self.drift = DriftMeter()
        self.agreement = Agreement(
            policies,
            transport,
            self.decisions,
            _needed(plan, transport, nodes.device),
            agree=agree,
            configuration=configuration,
            device=nodes.device,
        )
        self.epoch = -1
        self._clip = clip
        self._seed = seed
        self._sequence = 0
        self._input_plan = input_plan or plan
        self._deliveries = {side: Delivery(transport, codec) for side, codec in codecs.items()}
        self._exact_delivery = Delivery(transport, FullPrecision())
        self._exact = False
        self._noisy = False  # whether a model drops out in training
        self._orders: dict[int, Order] = {}  # chosen in training; evaluation follows
        self._constants: dict[bool, DenseConstant | SparseConstant] = {}

    def begin_epoch(self, epoch: int) -> None:
        """A training epoch starts; its number is the same on all ranks."""
        self.epoch = epoch
        self.decisions.begin_epoch(epoch)
        self.agreement.begin_epoch()

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
        self, h: Rowlike, layer: int, weight: torch.Tensor | None = None, dropout: float = 0.0
    ) -> torch.Tensor:
        """`Â h`, or `Â h W` with the order chosen and a constant input reused.

        `h [n_i, f_in]`, `weight [f_in, f_out]`. Dropout falls on `h` at the owner, before anything is sent;
        on a reused dense input it falls on `Â h` instead.
        """
        if h is self.input and self.savings.reuse_input:
            return self._constant_input(layer).propagate(weight, dropout, self._key(layer))
        clean = h if dropout and self._drifts("forward") else None
        h = self.dropout(h, layer, dropout)
        if weight is not None and self._order(h, weight, layer) == "transform-first":
            return self._aggregate(h @ weight, layer, None if clean is None else clean @ weight)
        h, clean = self._dense(h), None if clean is None else self._dense(clean)
        if weight is None:
            return self._aggregate(h, layer, clean)
        if h.requires_grad and self.savings.order == "aggregate-first":
            result: torch.Tensor = AggregateThenTransform.apply(self, layer, h, weight, clean)
            return result
        return self._aggregate(h, layer, clean) @ weight

    def rows(self, h: Rowlike, layer: int, dropout: float = 0.0) -> torch.Tensor:
        """Own rows, then the rows that other owners sent: `[n_i + r_i, f]`, the columns of `local_rows`."""
        if not self.plan.picks_rows:
            raise UserError(
                "this model weighs edges by content, but the plan sends sums; "
                "choose --plan halo or --plan block"
            )
        clean = self._dense(h) if dropout and self._drifts("forward") else None
        dropped = self._dense(self.dropout(h, layer, dropout))
        result: torch.Tensor = Rows.apply(self, layer, dropped, clean)
        return result

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `rows` returns, `[n_i, n_i + r_i]`."""
        return self.plan.forward.diagonal.matrix if self._absent("forward") else self._all_local_rows

    def dropout(self, h: Rowlike, layer: int, share: float) -> Rowlike:
        """Dropout of own rows with the mask that `propagate` and `rows` use at this layer."""
        if not share:
            return h
        self._noisy = True
        if isinstance(h, SparseMatrix):
            return drop_sparse(h, share, self.nodes, self._key(layer))
        return drop_dense(h, share, self.nodes, self._key(layer))

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
        h = h.contiguous()
        arrivals = self._deliver(self.plan.forward, h, layer, "forward", clean)
        return torch.cat([h, *(payload for _, payload in arrivals)])

    def return_rows(self, gradient: torch.Tensor, layer: int) -> torch.Tensor:
        """Gradients of received rows go back to their owners and add up there; outside autograd."""
        leg, own = self.plan.forward, self.transport.rank
        gradient = self._clipped(gradient).contiguous()
        if self.transport.size == 1 or self._absent("forward"):
            return gradient
        sizes = [0 if rank == own else row_map.rows_in for rank, row_map in enumerate(leg.add)]
        mine, *payloads = gradient.split([len(self.nodes), *sizes])
        rows = [0 if rank == own else row_map.rows_out for rank, row_map in enumerate(leg.make)]
        use = self._use(layer, "backward", payloads)
        out = mine.clone()
        for sender, part in self._delivery("backward").all_to_all(payloads, rows, use):
            leg.make[sender].transposed.add(part, out)
        return out

    def _deliver(
        self, leg: Leg, h: torch.Tensor, layer: int, direction: Direction, clean: torch.Tensor | None
    ) -> Arrivals:
        if self.transport.size == 1:
            return iter(())
        payloads = self._payloads(leg, h)
        use = self._use(layer, direction, payloads if clean is None else self._payloads(leg, clean))
        return _move(leg, payloads, use, self._delivery(direction))

    def _payloads(self, leg: Leg, h: torch.Tensor) -> list[torch.Tensor]:
        """What this rank would send: one payload for all, or one for each receiver."""
        own = self.transport.rank
        if leg.broadcast:
            return [leg.make[own].apply(h)]
        return [h[:0] if rank == own else row_map.apply(h) for rank, row_map in enumerate(leg.make)]

    def _use(self, layer: int, direction: Direction, payloads: Sequence[torch.Tensor]) -> Use:
        """Who sends now: agreed by all ranks before anyone acts."""
        self._sequence += 1
        policy = self.policies[direction]
        stream = Stream(layer, direction, self.transport.rank)
        if self._exact:
            if policy.drift_norm and self._noisy:
                self.drift.see(stream, torch.cat(list(payloads)), self.epoch)
            return self._exact_use(layer, direction, "evaluation")
        if policy.drift_norm:
            sends = self._decide_by_drift(stream, torch.cat(list(payloads)), policy.drift_norm)
        else:
            sends = self.agreement.decide(layer, direction)
        history = self.history if policy.max_age else None
        return Use(
            layer, direction, sends, self._sequence, self.epoch, history, policy.absent, policy.max_age
        )

    def _decide_by_drift(self, stream: Stream, payload: torch.Tensor, norm: Norm) -> list[bool]:
        """Measure, agree, and remember what is sent."""
        now, drift = self.drift.current(stream, payload, noisy=self._noisy), 0.0
        if self.agreement.needs_drift(stream.layer, stream.direction):
            drift = self.drift.measure(stream, now, norm)
        sends = self.agreement.decide(stream.layer, stream.direction, drift)
        if sends[stream.owner]:
            self.drift.keep(stream, now, self.epoch)
        return sends

    def _exact_use(self, layer: int, direction: Direction, purpose: Literal["payload", "evaluation"]) -> Use:
        everyone = [True] * self.transport.size
        return Use(layer, direction, everyone, self._sequence, self.epoch, purpose=purpose)

    def _delivery(self, direction: Direction) -> Delivery:
        return self._exact_delivery if self._exact else self._deliveries[direction]

    def _aggregate(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> torch.Tensor:
        detached = None if clean is None else clean.detach()
        result: torch.Tensor = Aggregate.apply(self, layer, h, detached)
        return result

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        """GRADIENT_CLIP of Algorithm 3: the L2 norm of what this rank holds is kept to `th_i = √p · th`."""
        if self._clip is None:
            return gradient
        limit = self._clip * self.transport.size**0.5
        norm = gradient.norm().item()
        return gradient * (limit / norm) if norm > limit else gradient

    def _dense(self, h: Rowlike) -> torch.Tensor:
        dense = h.to_dense() if isinstance(h, SparseMatrix) else h
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
        if self._exact and layer in self._orders:
            return self._orders[layer]
        wide, narrow = weight.shape
        if torch.is_grad_enabled():
            needs = isinstance(h, torch.Tensor) and h.requires_grad
            wide *= 2 if needs or not self.savings.skip_input_gradient else 1
            narrow *= 2
        order: Order = "aggregate-first" if wide < narrow else "transform-first"
        if not self._exact:
            self._orders[layer] = order
        return order

    def _constant_input(self, layer: int) -> DenseConstant | SparseConstant:
        """The constant of this mode: training under `drop` lacks remote rows that evaluation has."""
        absent = self._absent("forward")
        if absent not in self._constants:
            with torch.no_grad():
                self._constants[absent] = self._make_constant(layer, absent=absent)
        return self._constants[absent]

    def _make_constant(self, layer: int, *, absent: bool) -> DenseConstant | SparseConstant:
        leg, x = self.plan.forward, self.input
        self._sequence += 1
        use = self._exact_use(layer, "forward", "evaluation" if self._exact else "payload")
        if isinstance(x, SparseMatrix):
            if absent:
                return SparseConstant(x, self.nodes, leg.diagonal.matrix)
            entry = use.entry(self.transport.rank)
            return fetch_sparse_rows(x, self.nodes, self._input_plan, self.transport, entry)
        x = x.contiguous()
        arrivals: Arrivals = iter(())
        if self.transport.size > 1 and not absent:
            arrivals = _move(leg, self._payloads(leg, x), use, self._exact_delivery)
        return DenseConstant(_sum(leg, x, arrivals), self.nodes)

    def _absent(self, direction: Direction) -> bool:
        """Whether remote rows count as zero in the present mode."""
        return self.policies[direction].absent and not self._exact

    def _drifts(self, direction: Direction) -> bool:
        return self.policies[direction].drift_norm is not None and not self._exact

    @cached_property
    def _all_local_rows(self) -> SparseMatrix:
        return self.plan.local_rows()

    def _key(self, layer: int) -> DropoutKey:
        return DropoutKey(self._seed, self.epoch, layer)


def _move(leg: Leg, payloads: list[torch.Tensor], use: Use, delivery: Delivery) -> Arrivals:
    """Start a leg's collective; what arrives is waited for as it is consumed."""
    rows = [row_map.rows_in for row_map in leg.add]
    if leg.broadcast:
        return delivery.broadcast(payloads[0], rows, use)
    return delivery.all_to_all(payloads, rows, use)


def _sum(leg: Leg, h: torch.Tensor, arrivals: Arrivals) -> torch.Tensor:
    """Own product, made while the first payloads travel, plus the product of each payload."""
    out = leg.diagonal.apply(h)
    for owner, payload in arrivals:
        leg.add[owner].add(payload, out)
    return out


def _needed(plan: Plan, transport: Transport, device: torch.device) -> dict[Direction, list[bool]]:
    """For each owner, whether any other rank has a nonzero block for its rows; one gather for all."""
    legs = (plan.forward, plan.backward)
    wants = [[not row_map.empty for row_map in leg.add] for leg in legs]
    mine = torch.tensor(wants, dtype=torch.uint8, device=device)
    mine[:, transport.rank] = 0
    anyone = transport.all_gather(mine).amax(dim=0).bool().tolist()
    return dict(zip(DIRECTIONS, anyone, strict=True))
