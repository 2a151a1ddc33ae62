"""The plain dense single-process implementation that p ranks must equal.

Nothing of `sancus` is used: dense float64 matrices, textbook formulas, SGD by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from sancus.graphs.graph import Graph


@dataclass
class History:
    """Loss, logits and gradients of every epoch."""

    losses: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)


def dense_adjacency(graph: Graph, normalisation: str) -> torch.Tensor:
    """`Â [N, N]`, entry by entry."""
    a = np.array(graph.adjacency.todense(), np.float64)
    nodes = len(a)
    if normalisation == "symmetric":
        for v in range(nodes):
            if a[v, v] == 0:
                a[v, v] = 1.0
        degree = a.sum(axis=1)
        a = a / np.sqrt(np.outer(degree, degree))
    elif normalisation == "mean":
        degree = a.sum(axis=1)
        a = np.divide(a, degree[:, None], out=np.zeros_like(a), where=degree[:, None] > 0)
    return torch.from_numpy(a)


def dense_features(graph: Graph) -> torch.Tensor:
    x = graph.features
    return torch.from_numpy(np.array(x.todense() if hasattr(x, "todense") else x, np.float64))


def forward(
    model: str, weights: dict[str, torch.Tensor], a: torch.Tensor, x: torch.Tensor, *, residual: bool
) -> torch.Tensor:
    """Logits of GCN or GraphSAGE, with layer norm where the weights have it."""
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers"))
    h = x
    for layer in range(depth):
        bias = weights[f"layers.{layer}.bias"]
        if model == "gcn":
            z = a @ h @ weights[f"layers.{layer}.weight"] + bias
        else:
            z = a @ h @ weights[f"layers.{layer}.neighbours"] + h @ weights[f"layers.{layer}.own"] + bias
        if layer == depth - 1:
            return z
        if f"norms.{layer}.weight" in weights:
            z = F.layer_norm(z, z.shape[1:], weights[f"norms.{layer}.weight"], weights[f"norms.{layer}.bias"])
        z = torch.relu(z)
        h = z + h if residual and z.shape == h.shape else z
    raise AssertionError


def train(
    graph: Graph,
    model: str,
    weights: dict[str, torch.Tensor],
    *,
    epochs: int,
    lr: float,
    weight_decay: float,
    residual: bool,
) -> History:
    """SGD from the given weights `{name: tensor}` (float64)."""
    a = dense_adjacency(graph, {"gcn": "symmetric", "sage": "mean"}[model])
    x = dense_features(graph)
    labels = torch.from_numpy(np.array(graph.labels))
    rows = torch.from_numpy(np.flatnonzero(graph.train_mask))
    weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
    history = History()
    for _ in range(epochs):
        logits = forward(model, weights, a, x, residual=residual)
        if graph.multilabel:
            loss = F.binary_cross_entropy_with_logits(logits[rows], labels[rows].double())
        else:
            loss = F.cross_entropy(logits[rows], labels[rows])
        gradients = torch.autograd.grad(loss, list(weights.values()))
        history.losses.append(loss.item())
        history.logits.append(logits.detach())
        history.gradients.append(dict(zip(weights, gradients, strict=True)))
        with torch.no_grad():
            for tensor, gradient in zip(weights.values(), gradients, strict=True):
                tensor -= lr * (gradient + weight_decay * tensor)
    return history
