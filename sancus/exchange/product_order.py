"""Which of the two products of `Â H W` comes first, and how many columns cross for it.

`Â (H W)`, transform-first, sends `f_out` columns forward, and backward too, because `dW = Hᵀ (Âᵀ δ)`.
`(Â H) W`, aggregate-first, sends `f_in` forward. Backward there are two ways. CAGNET and SANCUS (eq. 4-5),
the setting `aggregate-first`, send `δ` itself, `f_out` columns: `G = Âᵀ δ`, `dW = Hᵀ G`. Sylvie (Alg. 2),
PipeGCN and BNS-GCN, the setting `aggregate-kept`, keep `T = Â H`: `dW = Tᵀ δ` is local, and what travels is
the gradient of the rows that came, `f_in` columns, only if that of `H` is needed. Where nothing is stale or
rounded, all orders have the same result. The rule is pure: a run follows it, and a prediction of its bytes
asks it.

Where rows arrive and no gradient of them returns (`--backward drop`), they are constants, and they enter `Z`
and `dW` with the `W` of now (DIGEST eq. 5-6): `Z_i = T_i W` and `dW = T_iᵀ δ_i`, where `T_i = Â_ii H_i +
Σ_j Â_ij H̃_j`. Then `H` itself must cross, whatever the setting: `H̃ W` would hold an old `W`, and its part of
`dW` would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sancus.comm.ledger import Direction
from sancus.staleness.base import Policy

ProductOrder = Literal["aggregate-first", "transform-first"]
OrderSetting = Literal["auto", "aggregate-kept"] | ProductOrder


def is_one_way(policies: Mapping[Direction, Policy]) -> bool:
    """Whether rows arrive whose gradients never return: constants of the loss (DIGEST eq. 5)."""
    return policies["backward"].absent and not policies["forward"].absent


def product_order(
    setting: OrderSetting,
    f_in: int,
    f_out: int,
    *,
    training: bool,
    input_gradient: bool,
    one_way: bool = False,
) -> ProductOrder:
    """The order after which fewer columns cross, forward and backward, unless the setting names one.

    `weight [f_in, f_out]`. Without training nothing goes backward; `input_gradient` says whether the gradient
    of `H` is needed, `one_way` that the rows of others are constants, which must cross as they are.
    """
    if one_way:
        return "aggregate-first"
    if setting != "auto":
        return "aggregate-first" if setting == "aggregate-kept" else setting
    aggregate = f_in * (2 if training and input_gradient else 1)
    transform = f_out * (2 if training else 1)
    return "aggregate-first" if aggregate < transform else "transform-first"


def columns_that_cross(
    setting: OrderSetting, f_in: int, f_out: int, *, input_gradient: bool, one_way: bool = False
) -> tuple[int, int]:
    """Columns of one layer's payloads in a training epoch, forward and backward; 0 where there are none.

    If the setting itself is aggregate-first, `δ [n_i, f_out]` travels backward, as in CAGNET and SANCUS (eq.
    4-5); where `Â H` is kept, or the rule chose this order, the gradient of `Â H` does. `one_way` payloads of
    gradients have the columns of `H`, and never cross.
    """
    order = product_order(setting, f_in, f_out, training=True, input_gradient=input_gradient, one_way=one_way)
    if order == "transform-first":
        return f_out, f_out
    if not input_gradient:
        return f_in, 0
    return f_in, f_out if setting == "aggregate-first" and not one_way else f_in
