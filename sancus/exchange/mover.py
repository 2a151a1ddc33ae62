"""The mover: runs the legs of a plan through a crossing, outside autograd.

It multiplies by `Â` or `Âᵀ` across ranks, hands rows of other owners to whoever weighs edges by content, and
takes the gradients of such rows back. The autograd functions of `sancus.exchange.aggregate` and
`sancus.exchange.streaming` are written on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Direction, Entry, Stream
from sancus.errors import UserError
from sancus.exchange.clean_pass import REFUSAL
from sancus.exchange.codec_error import Origin, Reach
from sancus.exchange.crossing import Crossing
from sancus.exchange.current_plan import CurrentPlan
from sancus.exchange.delivery import Arrivals, Outgoing
from sancus.exchange.legs import way_back
from sancus.kernels.matrix import SparseMatrix
from sancus.plans.base import Add, Leg, Plan, Reduce


class Mover:
    """Plan × crossing on one rank."""

    def __init__(
        self,
        plan: Plan,
        groups: Mapping[str, Group],
        crossing: Crossing,
        clip: float | None = None,
        seed: int = 0,
        reach: Reach | None = None,
    ) -> None:
        """`groups` are the ranks of each axis that the plan names; `crossing` is over the axis of its `Move`.

        `clip` is the threshold `th` of Algorithm 3's GRADIENT_CLIP. A rank's own is `th_i = √p·th`, as SANCUS
        prints it (§4.3.2); its derivation, `E‖δ_i‖ ≈ σ` and `E‖δ‖ ≈ √p·σ`, would give `th / √p`.
        `seed` is for plans that draw rows, `reach` for the noise of codecs.
        """
        self.plan = plan  # of all rows that may cross
        self.current = CurrentPlan(plan, crossing, seed)
        self.group = groups[plan.forward.move.axis]
        self.crossing = crossing
        self._groups = groups
        self.limit = None if clip is None else clip * self.group.size**0.5
        self._stopwatch = self.group.stopwatch
        self._reach = reach

    def aggregate(
        self, h: torch.Tensor, layer: int, direction: Direction, clean: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`T_i = Â_ii H_i + Σ_{j≠i} R_ij (S_ij H_j)`, or its transpose, `[n_i, f]` to `[n_i, f]`.

        `clean` is `h` without dropout, for policies that measure drift.
        """
        plan = self.current.now
        leg = plan.forward if direction == "forward" else plan.backward
        with self._stopwatch.at("other"):
            if direction == "backward":
                h = self.clipped(h)
            h = h.contiguous()
            origin = self._origin(h, summed=True) if direction == "forward" else None
            arrivals = self._deliver(leg, h, layer, direction, clean, origin)
            return self._run(leg, h, arrivals, layer, direction)

    def aggregate_once(self, x: torch.Tensor, layer: int, *, absent: bool) -> torch.Tensor:
        """`Â X [n_i, F]` of constant rows, fresh and in full precision; `absent`: without those of others."""
        x = x.contiguous()
        with self._stopwatch.at("other"):
            arrivals = self._deliver_once(x, layer, absent=absent)
            return self._run(self.plan.forward, x, arrivals, layer, "forward")

    def gather_rows(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> torch.Tensor:
        """Own rows, then received rows by owner, `[n_i + r_i, f]`."""
        with self._stopwatch.at("other"):
            return torch.cat([h, *(payload for _, payload in self.arrivals(h, layer, clean))])

    def gather_once(self, x: torch.Tensor, layer: int, *, absent: bool) -> torch.Tensor:
        """The same for constant rows, fresh and in full precision; `absent`: the own rows alone."""
        return torch.cat([x, *(payload for _, payload in self._deliver_once(x, layer, absent=absent))])

    def arrivals(self, h: torch.Tensor, layer: int, clean: torch.Tensor | None) -> Arrivals:
        """Other owners' rows, as they arrive."""
        h, leg = h.contiguous(), self.current.now.forward
        return self._deliver(leg, h, layer, "forward", clean, self._origin(h, summed=False))

    def return_rows(self, gradient: torch.Tensor, layer: int) -> torch.Tensor:
        """Gradients of received rows `[n_i + r_i, f]` go to their owners and add up there, `[n_i, f]`."""
        leg, own = self.current.now.forward, self.group.rank
        gradient = gradient.contiguous()
        if self.group.size == 1 or self.crossing.absent("forward"):
            return gradient
        sizes = [0 if rank == own else row_map.rows_in for rank, row_map in enumerate(leg.add)]
        mine, *payloads = gradient.split([leg.diagonal.rows_in, *sizes])
        with self._stopwatch.at("other"):
            back = way_back(leg, gradient.device)
            out = mine.clone()
            outgoing = Outgoing(payloads, back.weight)
            for sender, part in self.crossing.deliver(back, outgoing, layer, "backward"):
                with self._stopwatch.at("aggregation"):
                    back.add[sender].add(part, out)
        return out

    def clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        """GRADIENT_CLIP of Algorithm 3: all that a rank holds of a gradient, kept to the L2 norm `th_i`."""
        if self.limit is None:
            return gradient
        norm = gradient.norm()
        if gradient.device.type == "cpu":
            return gradient * (self.limit / norm.item()) if norm.item() > self.limit else gradient
        share = (self.limit / norm.double()).to(norm.dtype)  # as the host would round it, which is not asked
        return gradient * torch.where(norm > self.limit, share, 1.0)

    @property
    def local_rows(self) -> SparseMatrix:
        """Own rows of `Â` over the rows that `gather_rows` returns, `[n_i, n_i + r_i]`."""
        return self.current.local_rows

    def _run(
        self, leg: Leg, h: torch.Tensor, arrivals: Arrivals, layer: int, direction: Direction
    ) -> torch.Tensor:
        """The rest of a leg's program, after its `Move` has started; its own product is made meanwhile."""
        with self._stopwatch.at("aggregation"):
            out = leg.diagonal.apply(h)
        for instruction in leg.program:
            if isinstance(instruction, Add):
                for owner, payload in arrivals:
                    with self._stopwatch.at("aggregation"):
                        instruction.maps[owner].add(payload, out)
            elif isinstance(instruction, Reduce):
                self._reduce(out, instruction.axis, Stream(layer, direction, self.group.rank))
        return out

    def _reduce(self, out: torch.Tensor, axis: str, stream: Stream) -> None:
        """`out [n_i, f]` becomes the sum over the ranks of an axis; counted with the stream's payloads."""
        group, exact = self._groups[axis], self.crossing.clock.exact
        if self.crossing.clock.silent:
            raise UserError(f"the plan adds up sums of several ranks {REFUSAL}")
        entry = Entry("evaluation" if exact else "payload", stream)
        before = group.ledger.wire_of(entry.purpose)
        group.all_reduce(out.view(-1), entry)
        if not exact:
            group.ledger.count_raw(stream, group.ledger.wire_of(entry.purpose) - before)

    def _deliver(
        self,
        leg: Leg,
        h: torch.Tensor,
        layer: int,
        direction: Direction,
        clean: torch.Tensor | None,
        origin: Origin | None,
    ) -> Arrivals:
        if self.group.size == 1:
            return iter(())
        outgoing = replace(self._outgoing(leg, h), origin=origin)
        return self.crossing.deliver(
            leg, outgoing, layer, direction, None if clean is None else self._outgoing(leg, clean)
        )

    def _deliver_once(self, x: torch.Tensor, layer: int, *, absent: bool) -> Arrivals:
        if self.group.size == 1 or absent:
            return iter(())
        leg = self.plan.forward
        return self.crossing.once(leg, self._outgoing(leg, x), layer)

    def _origin(self, h: torch.Tensor, *, summed: bool) -> Origin | None:
        """What `h [n_i, f]` is for, where that is known."""
        return None if self._reach is None else Origin(h.detach(), self._reach, summed)

    def _outgoing(self, leg: Leg, h: torch.Tensor) -> Outgoing:
        """What this rank would send: one payload for all, or one for each receiver."""
        own = self.group.rank
        with self._stopwatch.at("aggregation"):
            if leg.broadcast:
                return Outgoing([leg.make[own].apply(h)], [leg.weight[own]])
            payloads = [h[:0] if rank == own else row_map.apply(h) for rank, row_map in enumerate(leg.make)]
        return Outgoing(payloads, leg.weight)


def mover_over(mover: Mover, plan: Plan) -> Mover:
    """The same crossing for other rows: those that another plan of the same ranks makes cross."""
    return Mover(plan, mover._groups, mover.crossing, reach=mover._reach)
