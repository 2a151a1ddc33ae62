"""A whole model written for PyG, `forward(x, edge_index)`, run on a partition as it is.

While the model runs, each of its PyG layers does what a `PyGLayer` does: it gets the rows of neighbours from
other ranks, numbered in the order in which the layers are called. Everything else of the model sees own rows.
So what looks at all rows at once would see too few of them, and is refused: batch norm, pooling.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from sancus.errors import UserError
from sancus.kernels.summed import Rowlike
from sancus.models.contract import Normalisation
from sancus.models.neighbourhood import Neighbourhood
from sancus.models.pyg import PyGLayer

ALL_ROWS = (
    "BatchNorm",
    "InstanceNorm",
    "GraphNorm",
    "PairNorm",
    "MeanSubtraction",
    "GraphSizeNorm",
    "Pooling",
)


class PyGModel(nn.Module):
    """The adapter. Its parameters are those of the user's module, `network`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        convs = [module for module in network.modules() if _is_layer(module)]
        if not convs:
            raise UserError(f"model {type(network).__name__!r} takes edge_index, but has no layer of PyG")
        _refuse_all_rows(network)
        self.normalisation: Normalisation = _normalisation(network, convs)
        self._convs = convs

    def forward(self, x: Rowlike, exchange: Neighbourhood) -> torch.Tensor:
        """Features `[n_i, F]` to what the user's model makes of own rows."""
        if not isinstance(x, torch.Tensor):
            raise UserError(
                f"model {type(self.network).__name__!r}: the features are sparse, and PyG's layers take "
                "dense ones; give them as an array"
            )
        with self._spread(exchange):
            logits: torch.Tensor = self.network(x, torch.empty(2, 0, dtype=torch.int64))
        return logits

    @contextmanager
    def _spread(self, exchange: Neighbourhood) -> Iterator[None]:
        """In here the layers of the model reach over all ranks."""
        layers = iter(range(1 << 16))

        def call(conv: nn.Module, h: Rowlike, edges: Any, *more: Any, **named: Any) -> torch.Tensor:
            extra = [*more, *named.values()]
            if any(value is not None for value in extra):
                raise UserError(
                    f"{type(conv).__name__} is called with more than x and edge_index; weights of edges come "
                    "from the graph, and features of edges are not used"
                )
            plain = _quiet(conv)
            return PyGLayer(plain, partial(type(conv).forward, plain))(h, exchange, next(layers))

        try:
            for conv in self._convs:
                conv.__dict__["forward"] = partial(call, conv)
            yield
        finally:
            for conv in self._convs:
                del conv.__dict__["forward"]


def _quiet(conv: nn.Module) -> nn.Module:
    """The same layer, with the same parameters, as it is outside of a model that is spread."""
    plain = copy.copy(conv)
    plain.__dict__.pop("forward")
    if hasattr(plain, "improved"):
        plain.__dict__["normalize"] = False
    return plain


def _is_layer(module: nn.Module) -> bool:
    return all(callable(getattr(module, name, None)) for name in ("propagate", "message", "aggregate"))


def _refuse_all_rows(network: nn.Module) -> None:
    for module in network.modules():
        name = type(module).__name__
        if any(word in name for word in ALL_ROWS):
            raise UserError(
                f"model {type(network).__name__!r}: {name} looks at all rows at once; a rank has its own: "
                "take LayerNorm, or write forward(x, exchange) with PyGLayer and exchange.sum"
            )


def _normalisation(network: nn.Module, convs: list[nn.Module]) -> Normalisation:
    """`symmetric` where all layers are `GCNConv` as usual, whose normalisation is ours; else raw edges."""
    gcn = [hasattr(conv, "improved") and getattr(conv, "normalize", False) is True for conv in convs]
    if not any(gcn):
        return "sum"
    usual = all(not conv.improved and conv.add_self_loops for conv in convs if hasattr(conv, "improved"))
    if all(gcn) and usual:
        return "symmetric"
    raise UserError(
        f"model {type(network).__name__!r}: GCNConv beside other layers, or with settings of its own, needs "
        "forward(x, exchange) and a PyGLayer for each"
    )


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's own module, where the adapter is around it."""
    return module.network if isinstance(module, PyGModel) else module
