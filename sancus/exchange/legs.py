"""What an exchange derives from the legs of its plan."""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Direction
from sancus.plans.base import Add, Leg, Move, Plan
from sancus.plans.maps import Identity


def way_back(leg: Leg, device: torch.device) -> Leg:
    """The way back of received rows: gradients of the rows themselves, not of sums over them."""
    rows = [torch.ones(row_map.rows_in, device=device) for row_map in leg.add]
    move = Move(leg.move.axis, False, make=[Identity(len(row)) for row in rows], weight=rows)
    return Leg(leg.diagonal, (move, Add([row_map.transposed for row_map in leg.make])))


def needed(plan: Plan, group: Group, device: torch.device) -> dict[Direction, list[bool]]:
    """For each owner, whether any other rank has a nonzero block for its rows; one gather for all."""
    legs = (plan.forward, plan.backward)
    wants = [[not row_map.empty for row_map in leg.add] for leg in legs]
    mine = torch.tensor(wants, dtype=torch.uint8, device=device)
    mine[:, group.rank] = 0
    anyone = group.all_gather(mine).amax(dim=0).bool().tolist()
    return dict(zip(DIRECTIONS, anyone, strict=True))
