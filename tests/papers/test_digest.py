"""DIGEST, transcribed: eq. 3-6, the store's pushes and pulls, a local step, the mean of weights.

Nothing of `sancus` computes the expected numbers: dense float64 matrices, every product and derivative is
written out as the paper has it, Adam by hand. Ranks must have the same losses and weights after every epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.reference import dense_adjacency, dense_features

EPOCHS, RATE, DECAY = 8, 0.05, 0.01
ORDERS = ("auto", "aggregate-first", "transform-first")
Weights = list[tuple[torch.Tensor, torch.Tensor]]  # W [f_in, f_out] and bias [f_out] of every layer


@dataclass(frozen=True)
class Run:
    """DIGEST with a period N: how we run it."""

    period: int = 3
    optimizer: Literal["adam", "sgd"] = "adam"
    hidden: int = 5
    ours: bool = False  # rows are used in the epoch that makes them, gradients are summed
    flags: dict[str, Any] = field(default_factory=dict)

    def config(self) -> Config:
        ours = {"staleness": f"epoch-fixed:bound={self.period - 1}", "parameters": "sum"}
        common = {"layers": 3, "hidden": self.hidden, "dropout": 0.0, "dtype": "float64", "kernel": "torch"}
        training = {"epochs": EPOCHS, "lr": RATE, "weight_decay": DECAY, "optimizer": self.optimizer}
        return make_config(
            preset=f"digest:{self.period}", **common, **training, **(ours if self.ours else {}), **self.flags
        )


PLAIN = {"reuse_input": False, "skip_input_gradient": False}
RUNS = [
    *(Run(period) for period in (1, 2, 3, 20)),
    *(Run(ours=True, period=period) for period in (1, 3)),
    *(Run(flags={"order": order, "plan": plan}) for order in ORDERS for plan in ("halo", "block", "prepost")),
    *(Run(flags=PLAIN | {"order": order}) for order in ORDERS),
    *(Run(hidden=11, ours=ours, flags={"order": order}) for order in ORDERS for ours in (True, False)),
    *(Run(optimizer="sgd", ours=ours) for ours in (True, False)),
]


class Part:
    """One subgraph `G_m`: its rows of `P`, split into columns inside and outside, and its local model."""

    def __init__(self, p: torch.Tensor, inside: torch.Tensor, weights: Weights) -> None:
        outside = torch.ones(len(p), dtype=torch.bool)
        outside[inside] = False
        self.inside, self.outside = inside, outside.nonzero().flatten()
        self.p_in, self.p_out = p[inside][:, self.inside], p[inside][:, self.outside]
        self.weights = [(w.clone(), b.clone()) for w, b in weights]
        self.moments = [[torch.zeros_like(t) for t in pair for _ in range(2)] for pair in weights]

    def forward(self, layer: int, h_in: torch.Tensor, stale: torch.Tensor) -> tuple[Any, Any]:
        """Eq. 5 before σ: `P_in H_in W + P_out H̃_out W + b`, and what eq. 6 needs of it."""
        w, b = self.weights[layer]
        z = self.p_in @ h_in @ w + self.p_out @ stale[self.outside] @ w + b
        return z, self.p_in @ h_in + self.p_out @ stale[self.outside]

    def backward(self, zs: list[Any], sums: list[Any], delta: torch.Tensor) -> Weights:
        """Eq. 6 for every layer: `dW = (P_in H_in + P_out H̃_out)ᵀ δ`; stale rows are constants."""
        gradients: Weights = []
        for layer in reversed(range(len(zs))):
            gradients.insert(0, (sums[layer].T @ delta, delta.sum(dim=0)))
            if layer:
                delta = (self.p_in.T @ delta @ self.weights[layer][0].T) * (zs[layer - 1] > 0)
        return gradients

    def step(self, gradients: Weights, epoch: int, optimizer: str) -> None:
        """A local step: SGD, or Adam with moments of this part's own; decay is part of the gradient."""
        for layer, pair in enumerate(gradients):
            for place, gradient in enumerate(pair):
                weight = self.weights[layer][place]
                g = gradient + DECAY * weight
                if optimizer == "sgd":
                    weight -= RATE * g
                    continue
                m, v = self.moments[layer][2 * place : 2 * place + 2]
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.999).add_(0.001 * g * g)
                m_hat, v_hat = m / (1 - 0.9 ** (epoch + 1)), v / (1 - 0.999 ** (epoch + 1))
                weight -= RATE * m_hat / (v_hat.sqrt() + 1e-8)


class Digest:
    """All parts of a graph, the store `H̃` of every hidden layer, and the weights that all begin with."""

    def __init__(self, run: Run, graph: Graph, blocks: list[torch.Tensor], weights: Weights) -> None:
        self.run, self.x = run, dense_features(graph)
        self.labels = torch.from_numpy(np.array(graph.labels))
        self.train = torch.from_numpy(np.array(graph.train_mask))
        self.parts = [Part(dense_adjacency(graph, "symmetric"), block, weights) for block in blocks]
        self.store: dict[int, torch.Tensor] = {}

    def epoch(self, epoch: int) -> float:
        """Forward of all parts, local losses and their gradients, local steps, the mean; the global loss."""
        depth, layers = len(self.parts[0].weights), []
        h, pushed = [self.x[part.inside] for part in self.parts], {0: self.x}
        for layer in range(depth):
            fresh = torch.zeros(len(self.x), h[0].shape[1]).double()
            for part, rows in zip(self.parts, h, strict=True):
                fresh[part.inside] = rows
            time = epoch % self.run.period == 0
            if layer and (layer not in self.store or (self.run.ours and time)):
                self.store[layer] = fresh  # used at once: the first epoch; ours
            if layer and time:
                pushed[layer] = fresh  # used from the next epoch on
            stale = self.store[layer] if layer else self.x
            layers.append(
                [part.forward(layer, rows, stale) for part, rows in zip(self.parts, h, strict=True)]
            )
            h = [torch.relu(z) for z, _ in layers[-1]]
        self.store |= {layer: rows for layer, rows in pushed.items() if layer}
        total, gradients, count = 0.0, [], int(self.train.sum())
        for place, part in enumerate(self.parts):
            zs, sums = zip(*(layer[place] for layer in layers), strict=True)
            share, delta = self.loss(part, zs[-1])
            total += share / count
            gradients.append(part.backward(list(zs), list(sums), delta / count))
        if self.run.ours:
            self.sum_gradients(gradients)
        else:  # eq. 3 with |V_m| = |V| / M: the mean over parts of local means is the mean over all
            p = len(self.parts)
            gradients = [[(w * p, b * p) for w, b in local] for local in gradients]
        for part, local in zip(self.parts, gradients, strict=True):
            part.step(local, epoch, self.run.optimizer)
        if not self.run.ours:
            self.average_weights()
        return total

    def loss(self, part: Part, logits: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Σ_v of the cross entropy over the part's training nodes, and its derivative by the logits."""
        own, labels = self.train[part.inside], self.labels[part.inside]
        probability = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
        hit = probability[torch.arange(len(labels)), labels]
        truth = torch.eye(logits.shape[1]).double()[labels]
        return -hit[own].log().sum().item(), (probability - truth) * own[:, None]

    def sum_gradients(self, gradients: list[Weights]) -> None:
        for layer in range(len(gradients[0])):
            total = tuple(sum(local[layer][place] for local in gradients) for place in (0, 1))
            for local in gradients:
                local[layer] = total  # type: ignore[call-overload]

    def average_weights(self) -> None:
        for layer in range(len(self.parts[0].weights)):
            for place in (0, 1):
                mean = torch.stack([part.weights[layer][place] for part in self.parts]).mean(dim=0)
                for part in self.parts:
                    part.weights[layer][place].copy_(mean)


def train(group: Group, folder: str) -> list[dict[str, Any]]:
    """Losses, and the weights before the first epoch and after every one, of every run, on one rank."""
    notes = []
    for run in RUNS:
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(run.config(), shard, group, torch.device("cpu"))
        weights = [weights_of(trainer.model)]
        losses, ages = [], []
        for record in trainer.epochs():
            losses.append(record["loss"])
            ages.append(record["max_age"])
            weights.append(weights_of(trainer.model))
        notes.append({"losses": losses, "ages": ages, "weights": weights})
    return notes


def weights_of(model: torch.nn.Module) -> Weights:
    """Copies of `W` and `b`, layer by layer."""
    tensors = [tensor.clone() for tensor in model.state_dict().values()]
    names = list(model.state_dict())
    assert [name.rpartition(".")[2] for name in names] == ["weight", "bias"] * (len(names) // 2)
    return list(zip(tensors[::2], tensors[1::2], strict=True))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=29, seed=3)


@pytest.fixture(scope="module", params=[2, 3])
def outcome(request: pytest.FixtureRequest, graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = shards_of(graph, "random", request.param, tmp_path_factory.mktemp("shards"))
    return folder, run_ranks("tests.papers.test_digest:train", request.param, folder=str(folder))


@pytest.mark.parametrize("place", range(len(RUNS)), ids=[str(run)[4:-1] for run in RUNS])
def test_ranks_compute_what_the_equations_say(outcome: Any, graph: Graph, place: int) -> None:
    folder, notes = outcome
    by_rank = [rank_notes[place] for rank_notes in notes]
    blocks = [torch.from_numpy(open_shard(folder, rank).nodes.copy()) for rank in range(len(notes))]
    digest = Digest(RUNS[place], graph, blocks, by_rank[0]["weights"][0])
    for epoch in range(EPOCHS):
        loss = digest.epoch(epoch)
        for note in by_rank:
            assert note["losses"][epoch] == pytest.approx(loss, rel=1e-10)
            for ours, theirs in zip(note["weights"][epoch + 1], digest.parts[0].weights, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_ages_run_from_one_to_the_period(outcome: Any) -> None:
    """What epoch e made is used in e + 1 … e + N; the first epoch is fresh. Ours: 0 … N − 1."""
    for run, note in zip(RUNS, outcome[1][0], strict=True):
        if run.ours:
            assert note["ages"] == [epoch % run.period for epoch in range(EPOCHS)]
        else:
            assert note["ages"] == [0, *(1 + (epoch - 1) % run.period for epoch in range(1, EPOCHS))]


def test_plain_sgd_steps_are_those_of_the_sum(outcome: Any) -> None:
    """With the same rows in every epoch, the mean of local SGD steps is the step of the summed gradient."""
    _, notes = outcome
    runs = [RUNS.index(replace(Run(optimizer="sgd"), ours=ours)) for ours in (True, False)]
    first, second = (notes[0][place]["weights"][1] for place in runs)  # epoch 0 is fresh in both
    for ours, theirs in zip(first, second, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
