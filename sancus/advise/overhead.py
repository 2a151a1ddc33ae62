"""What crosses beside payloads in an epoch of training: parameters, and all by which ranks agree.

In closed form, from what the groups and the trainer send: every message has a header, gradients are summed as
their codec does it, an epoch ends with a gather of statements, and policies that look at drift gather
their answers. Evaluation is left out, as it is not part of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sancus.comm.header import PAYLOAD_HEADER, PLAIN_HEADER
from sancus.comm.layout import Layout
from sancus.comm.ledger import Direction
from sancus.exchange.agreement import RECORD, Agree
from sancus.staleness.base import Policy, RowPolicy
from sancus.training.consensus import STATEMENT

WORD = 8  # bytes of a number in a record
BITS = 8  # rows in a byte of a bitmap
ORDER, HEALTH = 8, 1  # bytes by which ranks agree on the order of chunks, and that all is well


def agreement_bytes(
    ranks: int,
    messages: float,
    streams: Mapping[Direction, int],
    policies: Mapping[Direction, Policy],
    agree: Agree,
    sums: int,
    bitmaps: float = 0.0,
) -> float:
    """Headers of `messages` payloads, of the sum and of the statements; and gathered answers, or bitmaps.

    `streams` are the layers that are used in each direction, `sums` the collectives of a sum of parameters.
    """
    pairs = ranks * (ranks - 1)
    if not pairs:
        return 0.0
    gathers = [WORD * STATEMENT]
    answers = sum(
        count
        for side, count in streams.items()
        if policies[side].drift_norm is not None and not picks_rows(policies[side])
    )
    if any(policy.max_age for policy in policies.values()):
        gathers.append(WORD * (len(RECORD) + (answers if agree == "epoch" else 0)))
    if agree == "layer":
        gathers += [WORD * (len(RECORD) + 1)] * answers
    plain = sum(size + PLAIN_HEADER for size in gathers) + sums * PLAIN_HEADER
    return messages * PAYLOAD_HEADER + pairs * plain + bitmaps


def picks_rows(policy: Policy) -> bool:
    """Whether the owner picks rows, and tells them by bitmaps."""
    return isinstance(policy, RowPolicy) and policy.max_age > 0


def bitmap_bytes(rows: npt.NDArray[np.int64]) -> float:
    """Bitmaps of one use for `rows[i, j]` rows from owner `j` to receiver `i`, with their headers."""
    return float(((rows > 0) * (-(-rows // BITS) + PLAIN_HEADER)).sum())


def pipeline_agreement(
    layout: Layout,
    *,
    boundaries: int,
    messages: float,
    streams: Mapping[Direction, int],
    policies: Mapping[Direction, Policy],
    agree: Agree,
    sums: Sequence[int],
    measures: int,
) -> float:
    """The same of a pipeline: headers of `boundaries` messages between stages, and within each of them.

    All ranks agree on order, health and statements, the latter with `measures` more figures; a stage on its
    policies and its own sum of gradients, `sums [S]` collectives.
    """
    ranks, parts = layout.size, layout.parts
    gathers = [ORDER, HEALTH, WORD * (STATEMENT + measures)]
    everyone = ranks * (ranks - 1) * sum(size + PLAIN_HEADER for size in gathers)
    total = everyone + boundaries * PLAIN_HEADER + messages * PAYLOAD_HEADER
    pairs = parts * (parts - 1)
    if not pairs:
        return float(total)
    within = []
    answers = sum(count for side, count in streams.items() if policies[side].drift_norm is not None)
    if any(policy.max_age for policy in policies.values()):
        within.append(WORD * (len(RECORD) + (answers if agree == "epoch" else 0)))
    if agree == "layer":
        within += [WORD * (len(RECORD) + 1)] * answers
    stages = layout.stages * sum(size + PLAIN_HEADER for size in within) + sum(sums) * PLAIN_HEADER
    return float(total + pairs * stages)
