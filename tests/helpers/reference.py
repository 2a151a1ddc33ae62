"""The plain dense single-process implementation that p ranks must equal.

Nothing of `sancus` computes here: dense float64 matrices, textbook formulas, SGD by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from sancus.graphs.graph import Graph
from sancus.models.settings import ModelSettings
from tests.helpers.masks import Masks

NORMALISATIONS = {"sage": "mean", "gin": "sum"}  # the others: symmetric
Weights = dict[str, torch.Tensor]


@dataclass
class History:
    """Loss, logits and gradients of every epoch."""

    losses: list[float] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)
    gradients: list[Weights] = field(default_factory=list)


def dense_adjacency(graph: Graph, normalisation: str) -> torch.Tensor:
    """`Â [N, N]`, entry by entry."""
    return normalised(np.array(graph.adjacency.todense(), np.float64), normalisation)


def normalised(a: np.ndarray, normalisation: str) -> torch.Tensor:
    """`Â` of a dense adjacency."""
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


class Forward:
    """One forward pass of any model over a dense `Â`; `masks` are those of a training pass with dropout."""

    def __init__(
        self,
        model: str,
        settings: ModelSettings,
        weights: Weights,
        a: torch.Tensor,
        train: bool,
        masks: Masks | None = None,
        on_product: bool = False,
    ) -> None:
        """`on_product`: dropout of the first layer's input falls on `Â X`, as where `Â X` is kept."""
        self.model, self.settings, self.weights, self.a, self.train = model, settings, weights, a, train
        self.masks, self.on_product = masks, on_product
        self.depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers"))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.deep(x) if self.model in ("gcnii", "resgcn+") else self.stacked(x)

    def of(self, layer: int, name: str) -> torch.Tensor:
        return self.weights[f"layers.{layer}.{name}"]

    def drop(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        return h if self.masks is None else self.masks.drop(h, layer)

    def aggregate(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """`Â dropout(h)`."""
        if self.on_product and layer == 0:
            return self.drop(self.a @ h, layer)
        return self.a @ self.drop(h, layer)

    def norm(self, z: torch.Tensor, place: int) -> torch.Tensor:
        """Layer or batch normalisation, where the weights have it; batch statistics run along."""
        if f"norms.{place}.weight" not in self.weights:
            return z
        w, b = self.weights[f"norms.{place}.weight"], self.weights[f"norms.{place}.bias"]
        if f"norms.{place}.running_mean" not in self.weights:
            return F.layer_norm(z, z.shape[1:], w, b)
        running = [self.weights[f"norms.{place}.running_{kind}"] for kind in ("mean", "var")]
        return F.batch_norm(z, *running, w, b, training=self.train)

    def joined(self, made: list[torch.Tensor]) -> torch.Tensor:
        return (
            torch.cat(made, dim=1) if self.settings.jumping == "cat" else torch.stack(made).max(dim=0).values
        )

    def output(self, h: torch.Tensor) -> torch.Tensor:
        h = self.drop(h, self.depth + 1 if self.model in ("gcnii", "resgcn+") else self.depth)
        return h @ self.weights["output.weight"] + self.weights["output.bias"]

    def stacked(self, x: torch.Tensor) -> torch.Tensor:
        """GCN, GraphSAGE, GIN, GAT."""
        layers: dict[str, Callable[[torch.Tensor, int], torch.Tensor]]
        layers = {"gcn": self.gcn, "sage": self.sage, "gin": self.gin, "gat": self.gat, "gatv2": self.gat}
        h, made = x, []
        for layer in range(self.depth):
            z = layers[self.model](h, layer)
            if layer == self.depth - 1 and self.settings.jumping == "none":
                return z
            z = self.norm(z, layer)
            z = F.elu(z) if self.model.startswith("gat") else torch.relu(z)
            h = z + h if self.settings.residual and z.shape == h.shape else z
            made.append(h)
        return self.output(self.joined(made))

    def gcn(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        return self.aggregate(h, layer) @ self.of(layer, "weight") + self.of(layer, "bias")

    def sage(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        neighbours, own = self.aggregate(h, layer), self.drop(h, layer)
        return (
            neighbours @ self.of(layer, "neighbours") + own @ self.of(layer, "own") + self.of(layer, "bias")
        )

    def gin(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        t = (1 + self.of(layer, "eps")) * self.drop(h, layer) + self.aggregate(h, layer)
        t = torch.relu(t @ self.of(layer, "weight") + self.of(layer, "bias"))
        return t @ self.of(layer, "second.weight") + self.of(layer, "second.bias")

    def gat(self, h: torch.Tensor, layer: int) -> torch.Tensor:
        """Head after head, softmax over a whole row of the dense matrix."""
        dynamic = self.model == "gatv2"
        vectors = self.of(layer, "score.attention" if dynamic else "score.source")
        heads, width = vectors.shape
        h = self.drop(h, layer)
        values = (h @ self.of(layer, "weight")).split(width, dim=1)
        outs = []
        for head in range(heads):
            v = values[head]
            if dynamic:
                own = (h @ self.of(layer, "score.target")).split(width, dim=1)[head]
                scores = F.leaky_relu(own[:, None, :] + v[None, :, :], 0.2) @ vectors[head]
            else:
                scores = F.leaky_relu(
                    (v @ self.of(layer, "score.target")[head])[:, None] + v @ vectors[head], 0.2
                )
            attention = torch.softmax(scores.masked_fill(self.a == 0, -math.inf), dim=1)
            if self.masks is not None and self.masks.edge_share:
                attention = self.masks.drop_edges(attention, layer, head, heads)
            outs.append(attention @ v)
        last = layer == self.depth - 1 and self.settings.jumping == "none"
        joined = torch.stack(outs).mean(dim=0) if last else torch.cat(outs, dim=1)
        return joined + self.of(layer, "bias")

    def deep(self, x: torch.Tensor) -> torch.Tensor:
        """GCNII and ResGCN+."""
        settings, made = self.settings, []
        h = self.drop(x, self.depth) @ self.weights["input.weight"] + self.weights["input.bias"]
        if self.model == "gcnii":
            first = h = torch.relu(h)
        for layer in range(self.depth):
            if self.model == "gcnii":
                beta = math.log(settings.gcnii_lambda / (layer + 1) + 1)
                t = (1 - settings.gcnii_alpha) * self.aggregate(h, layer) + settings.gcnii_alpha * first
                mixing = (1 - beta) * torch.eye(len(t[0])).double() + beta * self.of(layer, "weight")
                z = torch.relu(self.norm(t @ mixing, layer))
                h = z + h if settings.residual else z
                made.append(h)
            else:
                active = torch.relu(self.norm(h, 0)) if layer == 0 else made[-1]
                h = h + self.gcn(active, layer)
                made.append(torch.relu(self.norm(h, layer + 1)))
        return self.output(made[-1] if settings.jumping == "none" else self.joined(made))


@dataclass(frozen=True)
class Problem:
    """What is trained, how it is scored, and on what."""

    graph: Graph
    model: str
    settings: ModelSettings
    epochs: int
    lr: float
    weight_decay: float
    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0
    inductive: bool = False
    seed: int = 0
    on_product: bool = False  # dropout of the first layer's input falls on `Â X`

    def masks(self, epoch: int, nodes: np.ndarray) -> Masks | None:
        settings = self.settings
        if not settings.dropout and not settings.attention_dropout:
            return None
        return Masks(self.seed, epoch, nodes.tolist(), settings.dropout, settings.attention_dropout)

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        weights = None if self.class_weights is None else torch.tensor(self.class_weights).double()
        if self.graph.multilabel:
            soft = labels.double() * (1 - self.label_smoothing) + self.label_smoothing / 2
            return F.binary_cross_entropy_with_logits(logits, soft, pos_weight=weights)
        return F.cross_entropy(logits, labels, weight=weights, label_smoothing=self.label_smoothing)


def train(problem: Problem, weights: Weights) -> History:
    """SGD from the given weights `{name: tensor}` (float64)."""
    graph, kind = problem.graph, NORMALISATIONS.get(problem.model, "symmetric")
    raw = np.array(graph.adjacency.todense(), np.float64)
    if not problem.settings.edge_weights:
        raw = (raw != 0).astype(np.float64)
    rows = np.flatnonzero(graph.train_mask)
    x, labels = dense_features(graph), torch.from_numpy(np.array(graph.labels))[rows]
    a = normalised(raw.copy(), kind)
    seen, own = (rows, np.arange(len(rows))) if problem.inductive else (np.arange(graph.nodes), rows)
    seen_a = normalised(raw[np.ix_(seen, seen)], kind)
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    trained = [name for name in weights if "running" not in name]
    history = History()
    for epoch in range(problem.epochs):
        with torch.no_grad():
            history.logits.append(Forward(problem.model, problem.settings, weights, a, False).logits(x))
        for name in trained:
            weights[name] = weights[name].detach().requires_grad_()
        masks = problem.masks(epoch, seen)
        training = Forward(
            problem.model, problem.settings, weights, seen_a, True, masks, on_product=problem.on_product
        )
        logits = training.logits(x[seen])
        loss = problem.loss(logits[own], labels)
        gradients = torch.autograd.grad(loss, [weights[name] for name in trained])
        history.losses.append(loss.item())
        history.gradients.append(dict(zip(trained, gradients, strict=True)))
        with torch.no_grad():
            for name, gradient in zip(trained, gradients, strict=True):
                weights[name] -= problem.lr * (gradient + problem.weight_decay * weights[name])
    return history
