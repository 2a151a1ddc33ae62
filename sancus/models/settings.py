"""The settings that every model takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sancus.errors import UserError


@dataclass(frozen=True)
class ModelSettings:
    """Shape of a model."""

    layers: int = 2
    """Number of graph layers."""
    hidden: int = 64
    """Width of the hidden layers."""
    dropout: float = 0.5
    """Share of the entries of every layer's input that is dropped in training."""
    norm: Literal["none", "layer"] = "none"
    """Normalisation after every hidden layer."""
    residual: bool = False
    """Add a layer's input to its output where the widths agree."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise UserError(f"--layers {self.layers}: a model needs at least 1 layer")
        if self.hidden < 1:
            raise UserError(f"--hidden {self.hidden}: a layer needs at least 1 column")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"--dropout {self.dropout}: must be at least 0 and below 1")

    def widths(self, features: int, classes: int) -> list[int]:
        """`f_0 … f_L`: features, hidden layers, classes."""
        return [features, *[self.hidden] * (self.layers - 1), classes]
