"""Which of the two products of `Â H W` comes first, and how many columns cross for it.

`Â (H W)`, transform-first, sends `f_out` columns forward, and backward too, because `dW = Hᵀ (Âᵀ δ)`.
`(Â H) W`, aggregate-first, sends `f_in` forward. Backward there are two ways. CAGNET and SANCUS (eq. 4-5),
the setting `aggregate-first`, send `δ` itself, `f_out` columns: `G = Âᵀ δ`, `dW = Hᵀ G`. Sylvie (Alg. 2),
PipeGCN, BNS-GCN and DIGEST (eq. 6), the setting `aggregate-kept`, keep `T = Â H`: `dW = Tᵀ δ` is local, and
what travels is the gradient of the rows that came, `f_in` columns, only if that of `H` is needed. Where
nothing is stale or rounded, all orders have the same result.

The rule is pure: a run follows it, and a prediction of its bytes asks it.
"""

from __future__ import annotations

from typing import Literal

ProductOrder = Literal["aggregate-first", "transform-first"]
OrderSetting = Literal["auto", "aggregate-kept"] | ProductOrder


def product_order(
    setting: OrderSetting, f_in: int, f_out: int, *, training: bool, input_gradient: bool
) -> ProductOrder:
    """The order after which fewer columns cross, forward and backward, unless the setting names one.

    `weight [f_in, f_out]`. Without training nothing goes backward; `input_gradient` says whether the gradient
    of `H` is needed.
    """
    if setting == "aggregate-kept":
        return "aggregate-first"
    if setting != "auto":
        return setting
    aggregate = f_in * (2 if training and input_gradient else 1)
    transform = f_out * (2 if training else 1)
    return "aggregate-first" if aggregate < transform else "transform-first"


def columns_that_cross(
    setting: OrderSetting, f_in: int, f_out: int, *, input_gradient: bool
) -> tuple[int, int]:
    """Columns that one layer sends in a training epoch, forward and backward; 0 where nothing crosses.

    If the setting itself is aggregate-first, `δ [n_i, f_out]` travels backward, as in CAGNET and SANCUS (eq.
    4-5); where `Â H` is kept, or the rule chose this order, the gradient of `Â H` does.
    """
    order = product_order(setting, f_in, f_out, training=True, input_gradient=input_gradient)
    if order == "transform-first":
        return f_out, f_out
    if not input_gradient:
        return f_in, 0
    return f_in, f_out if setting == "aggregate-first" else f_in
