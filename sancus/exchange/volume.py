"""What a run will send and remember, in closed form, before it starts.

For models that aggregate once a layer; `f_0 … f_L` are the widths of the layers. Per use of a stream, a
payload has the columns that `FullGraph.propagate` will choose, and a receiver's history the plan's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sancus.comm.ledger import Direction
from sancus.exchange.product_order import columns_that_cross, is_one_way
from sancus.exchange.savings import Savings
from sancus.plans.base import Plan
from sancus.staleness.base import Policy

Columns = dict[tuple[int, Direction], int]


def stream_columns(
    widths: Sequence[int], savings: Savings, policies: Mapping[Direction, Policy], *, labels: bool = False
) -> Columns:
    """Columns of every stream that is used in each epoch, by layer and direction (`docs/design.md`).

    `labels`: a learned embedding of labels is part of the input, which then has a gradient.
    """
    columns: Columns = {}
    for layer, (f_in, f_out) in enumerate(pairwise(widths)):
        if layer == 0 and savings.reuse_input:
            continue
        needs_gradient = layer > 0 or labels or not savings.skip_input_gradient
        columns[layer, "forward"], backward = columns_that_cross(
            savings.order, f_in, f_out, input_gradient=needs_gradient, one_way=is_one_way(policies)
        )
        if backward:
            columns[layer, "backward"] = backward
    return columns


def history_bytes(
    plan: Plan, rank: int, columns: Columns, policies: Mapping[Direction, Policy], itemsize: int
) -> int:
    """Memory of a rank's histories: the rows it receives × columns, for streams that may be stale.

    Under `block` and savings off this is the paper's Table 6: `(p−1)/p · N · Σ f` values.
    """
    total = 0
    for (_, direction), width in columns.items():
        leg = plan.forward if direction == "forward" else plan.backward
        if policies[direction].max_age:
            rows = sum(row_map.rows_in for owner, row_map in enumerate(leg.add) if owner != rank)
            total += rows * width * itemsize
    return total
