"""The settings that every model takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from sancus.errors import UserError

Norm = Literal["auto", "none", "layer", "batch"]
Jumping = Literal["none", "cat", "max"]


@dataclass(frozen=True)
class ModelSettings:
    """Shape of a model."""

    layers: int = 2
    """Number of graph layers."""
    hidden: int = 64
    """Width of the hidden layers; in GAT all heads together."""
    dropout: float = 0.5
    """Share of the entries of every layer's input that is dropped in training."""
    norm: Norm = "auto"
    """Normalisation of hidden rows; batch: statistics over all ranks; auto: layer for resgcn+, else none."""
    residual: bool = False
    """Add a layer's input to its output where the widths agree."""
    jumping: Jumping = "none"
    """Jumping knowledge: classify from all layers, side by side (cat) or by their maximum (max)."""
    heads: int = 8
    """Attention heads of GAT's hidden layers, side by side; they divide --hidden."""
    output_heads: int = 1
    """Attention heads of GAT's last layer, averaged."""
    attention_dropout: float = 0.0
    """Share of GAT's attention weights that is dropped in training."""
    gcnii_alpha: float = 0.1
    """GCNII's α: the share of the first layer's rows in every layer."""
    gcnii_lambda: float = 0.5
    """GCNII's λ: how fast deep layers come near the identity, β_ℓ = log(1 + λ/ℓ)."""
    edge_weights: bool = True
    """Use the graph's edge weights; off: every edge counts 1. GAT never looks at them."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise UserError(f"--layers {self.layers}: a model needs at least 1 layer")
        if self.hidden < 1:
            raise UserError(f"--hidden {self.hidden}: a layer needs at least 1 column")
        for name in ("heads", "output_heads"):
            if getattr(self, name) < 1:
                raise UserError(f"--{_flag(name)} {getattr(self, name)}: must be at least 1")
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UserError(f"--{_flag(name)} {getattr(self, name)}: must be at least 0 and below 1")
        if not 0.0 <= self.gcnii_alpha <= 1.0:
            raise UserError(f"--gcnii-alpha {self.gcnii_alpha}: must be between 0 and 1")
        if not (math.isfinite(self.gcnii_lambda) and self.gcnii_lambda >= 0):
            raise UserError(f"--gcnii-lambda {self.gcnii_lambda}: must be a number that is not negative")

    def widths(self, features: int, classes: int) -> list[int]:
        """`f_0 … f_L`: features, hidden layers, classes; with jumping knowledge all layers are hidden."""
        last = classes if self.jumping == "none" else self.hidden
        return [features, *[self.hidden] * (self.layers - 1), last]


def _flag(name: str) -> str:
    return name.replace("_", "-")
