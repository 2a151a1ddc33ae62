"""Rows that cross one by one, where a policy picks rows of a payload (`sancus.staleness.base.RowPolicy`).

The owner compares every row with what its receiver holds, and says by a bitmap, one bit a row, which rows
come; then these rows cross as any payload does, and every receiver puts them in their places in its history
of the stream. So a use takes two collectives: one of bitmaps, counted as agreement, and one of rows.
The owner remembers the epoch in which each row last crossed: a row that would get older than the policy's
`max_age` crosses whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sancus.comm.group import Group
from sancus.comm.ledger import AGREEMENT, Stream
from sancus.errors import UserError
from sancus.exchange.delivery import Arrivals, Outgoing, Use
from sancus.exchange.drift import DriftMeter
from sancus.exchange.history import History
from sancus.plans.base import Leg
from sancus.staleness.base import RowPolicy

BYTE = 8


@dataclass(frozen=True)
class Picked:
    """What crosses of an outgoing payload."""

    masks: Sequence[torch.Tensor]  # of each payload, which rows
    outgoing: Outgoing  # those rows


def pick(
    policy: RowPolicy, meter: DriftMeter, stream: Stream, now: torch.Tensor, epoch: int
) -> tuple[torch.Tensor, float]:
    """Which rows of `now` cross `[rows]`, and how far they have drifted on average."""
    norm = policy.drift_norm
    assert norm is not None, "a policy that picks rows measures drift"
    drift = meter.of_rows(stream, now, norm)
    too_old = epoch - meter.versions.pull(stream) > policy.max_age
    where = f"policy {type(policy).__name__}, epoch {epoch}, layer {stream.layer}, {stream.direction}"
    try:
        chosen = policy.pick(drift)
    except Exception as error:
        raise UserError(f"{where}: pick raised {type(error).__name__}: {error}") from error
    if not isinstance(chosen, torch.Tensor) or chosen.dtype != torch.bool or chosen.shape != drift.shape:
        raise UserError(f"{where}: pick returned no yes or no for each of {len(drift)} rows")
    return chosen | too_old, drift.mean().item() if len(drift) else 0.0


def part_of(outgoing: Outgoing, picked: torch.Tensor) -> Picked:
    """The rows of all payloads that are picked `[rows]`."""
    masks = picked.split([len(payload) for payload in outgoing.payloads])
    payloads = [payload[mask] for payload, mask in zip(outgoing.payloads, masks, strict=True)]
    weights = [weight[: len(mask)][mask] for weight, mask in zip(outgoing.weights, masks, strict=True)]
    return Picked(masks, replace(outgoing, payloads=payloads, weights=weights))


def rest_of(outgoing: Outgoing, picked: Picked) -> Outgoing:
    """As many rows of each payload as are not picked: to count what does not cross."""
    counts = [
        len(mask) - len(part) for mask, part in zip(picked.masks, picked.outgoing.payloads, strict=True)
    ]
    payloads = [payload[:count] for payload, count in zip(outgoing.payloads, counts, strict=True)]
    return replace(outgoing, payloads=payloads)


def tell(group: Group, leg: Leg, masks: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Every receiver hears which rows come; from every owner `[p]`, which rows this rank gets."""
    own, size = group.rank, group.size
    rows = [0 if owner == own else row_map.rows_in for owner, row_map in enumerate(leg.add)]
    going = [_packed(masks[0 if leg.broadcast else rank]) for rank in range(size)]
    going[own] = going[own][:0]
    coming = [_bytes_of(count) for count in rows]
    received = going[own].new_empty(sum(coming))
    group.all_to_all(torch.cat(going), [len(bits) for bits in going], received, coming, AGREEMENT).wait()
    return [_unpacked(bits, count) for bits, count in zip(received.split(coming), rows, strict=True)]


def merged(arrivals: Arrivals, masks: Sequence[torch.Tensor], history: History, use: Use) -> Arrivals:
    """Whole payloads of all owners: what the history holds, with the rows that arrive in their places."""
    part = next(arrivals, None)
    for owner, mask in enumerate(masks):
        if not len(mask):
            continue
        whole = history.pull(use.stream(owner))
        if part is not None and part[0] == owner:
            whole = whole.clone()
            whole[mask] = part[1]
            history.push(use.stream(owner), whole, use.epoch)
            part = next(arrivals, None)
        yield owner, whole


def _bytes_of(rows: int) -> int:
    return -(-rows // BYTE)


def _packed(mask: torch.Tensor) -> torch.Tensor:
    """Eight rows a byte, the first in the lowest bit."""
    bits = mask.new_zeros(_bytes_of(len(mask)) * BYTE, dtype=torch.uint8)
    bits[: len(mask)] = mask
    shifts = torch.arange(BYTE, dtype=torch.uint8, device=mask.device)
    return (bits.view(-1, BYTE) << shifts).sum(dim=1, dtype=torch.uint8)


def _unpacked(packed: torch.Tensor, rows: int) -> torch.Tensor:
    """The inverse, `[rows]`."""
    shifts = torch.arange(BYTE, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & 1).bool().view(-1)[:rows]
