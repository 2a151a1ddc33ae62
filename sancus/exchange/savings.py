"""The exact savings: ways to send less that change no number of the result (`docs/design.md`)."""

from __future__ import annotations

from dataclasses import dataclass

from sancus.exchange.order import OrderSetting


@dataclass(frozen=True)
class Savings:
    """Which of them a run uses."""

    reuse_input: bool = True  # a constant input crosses once
    order: OrderSetting = "auto"  # send the narrower of the two matrices in each direction
    skip_input_gradient: bool = True  # nobody needs the gradient of X
