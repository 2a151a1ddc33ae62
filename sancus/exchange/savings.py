"""The exact savings: ways to send less that change no number where rows are fresh and in full precision.

Under staleness or a codec they decide what is remembered or rounded, and dropout on a reused dense input
falls on `Â X`: see `docs/composition.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sancus.exchange.product_order import OrderSetting


@dataclass(frozen=True)
class Savings:
    """Which of them a run uses."""

    reuse_input: bool = True  # a constant input crosses once
    order: OrderSetting = "auto"  # send the narrower of the two matrices in each direction
    skip_input_gradient: bool = True  # nobody needs the gradient of X
