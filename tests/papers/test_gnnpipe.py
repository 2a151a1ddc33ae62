"""GNNPipe, transcribed: Algorithm 1 with its three techniques, for a GCN, in dense float64 matrices.

Forward is the paper's, chunk after chunk. Its exact gradient, history being constant, comes from autograd;
where gradients of the epoch before stand in for those yet to come, it is written out, table by table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.graphs.graph import Graph
from sancus.graphs.row_order import chunks_of
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features

EPOCHS, RATE, LAYERS, HIDDEN = 6, 0.4, 4, 5
Weights = list[tuple[torch.Tensor, torch.Tensor]]  # W [f_in, f_out] and bias [f_out] of every layer


@dataclass(frozen=True)
class Run:
    """How the paper's techniques are set."""

    chunks: int = 4
    order: str = "shuffle"  # technique 1
    every: int = 1  # technique 2: α
    stale_gradients: bool = False  # without technique 3
    start: str = "exact"
    flags: dict[str, Any] = field(default_factory=dict)


RUNS = [
    Run(),
    Run(every=3),
    Run(order="fixed", start="zeros"),
    Run(order="alternate", every=2, start="zeros"),
    Run(chunks=40),
    Run(stale_gradients=True),
    Run(stale_gradients=True, every=2, order="fixed"),
    Run(flags={"reuse_input": False, "skip_input_gradient": False}),
    Run(flags={"reuse_input": False, "order": "aggregate-kept"}),
]


class GNNPipe:
    """Weights, histories and what they were made in."""

    def __init__(self, run: Run, graph: Graph, weights: Weights) -> None:
        self.run, self.weights = run, weights
        self.a, self.x = dense_adjacency(graph, "symmetric"), dense_features(graph)
        self.labels = torch.from_numpy(np.array(graph.labels))
        self.train = torch.from_numpy(np.array(graph.train_mask))
        chunk = torch.from_numpy(chunks_of(graph.adjacency, run.chunks))
        self.members = [(chunk == k).nonzero().flatten() for k in range(run.chunks)]
        self.history = self.exact()
        if run.start == "zeros":
            self.history = [torch.zeros_like(h) for h in self.history]
        self.version = 0  # epochs are numbered from 1, as in the paper
        self.given = [torch.zeros_like(h) for h in self.history]  # dT of the epoch before, by layer

    def exact(self) -> list[torch.Tensor]:
        """The inputs of all hidden layers; that of the first is constant, and never stale."""
        h, found = self.x, []
        for layer, (w, b) in enumerate(self.weights):
            found.append(h)
            h = self.a @ h @ w + b
            h = h if layer == LAYERS - 1 else torch.relu(h)
        return found

    def epoch(self, t: int, order: list[int]) -> tuple[float, Weights]:
        """Algorithm 1 in epoch `t`, from 1: the loss, and the gradients that the weights are moved by."""
        alpha = self.run.every
        assert self.version == alpha * ((t - 1) // alpha), "technique 2"
        leaves = [tuple(p.clone().requires_grad_() for p in pair) for pair in self.weights]
        full = [h.clone() for h in self.history]  # fresh where there are fresh rows
        full[0] = self.x
        summed: list[dict[int, torch.Tensor]] = [{} for _ in leaves]  # T of every layer and chunk
        losses = []
        for k in order:
            members = self.members[k]
            h = self.x[members]
            for layer, (w, b) in enumerate(leaves):
                full[layer] = full[layer].index_copy(0, members, h)
                t_k = self.a[members] @ full[layer]
                summed[layer][k] = t_k
                h = t_k @ w + b
                h = h if layer == LAYERS - 1 else torch.relu(h)
            chosen = self.train[members]
            losses.append(F.cross_entropy(h[chosen], self.labels[members][chosen], reduction="sum"))
        loss = torch.stack(losses).sum() / self.train.sum()
        if self.run.stale_gradients:
            gradients = self.backward_with_stale_gradients(order, summed, leaves)
        else:
            flat = torch.autograd.grad(loss, [p for pair in leaves for p in pair])
            gradients = list(zip(flat[::2], flat[1::2], strict=True))
        if t % alpha == 0:
            self.history, self.version = [h.detach() for h in full], t
        self.weights = [
            tuple(p - RATE * g for p, g in zip(*pairs, strict=True))
            for pairs in zip(self.weights, gradients, strict=True)
        ]
        return loss.item(), gradients

    def backward_with_stale_gradients(
        self, order: list[int], summed: list[dict[int, torch.Tensor]], leaves: Weights
    ) -> Weights:
        """`D[C_k] = dT_k; dH_k = (Âᵀ)[C_k, :] D`, with last epoch's `D` where no chunk has been."""
        found = [(torch.zeros_like(w), torch.zeros_like(b)) for w, b in leaves]
        for k in reversed(order):
            members, d_h = self.members[k], None
            for layer in reversed(range(LAYERS)):
                w, b = (p.detach() for p in leaves[layer])
                t_k = summed[layer][k].detach()
                z = t_k @ w + b
                if layer == LAYERS - 1:
                    chosen = self.train[members].double()[:, None]
                    target = F.one_hot(self.labels[members], z.shape[1])
                    d_z = (z.softmax(dim=1) - target) * chosen / self.train.sum()
                else:
                    d_z = d_h * (z > 0)
                found[layer] = (found[layer][0] + t_k.T @ d_z, found[layer][1] + d_z.sum(dim=0))
                self.given[layer][members] = d_z @ w.T
                d_h = self.a[:, members].T @ self.given[layer]
        return found


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_one_process_trains_as_the_paper_says(run: Run, tmp_path: Path) -> None:
    graph = awkward_graph(nodes=26, seed=3, weighted=True)
    folder = shards_of(graph, "contiguous", 1, tmp_path, run.chunks)
    techniques = {
        "chunks": run.chunks,
        "chunk_order": run.order,
        "history_every": run.every,
        "stale_gradients": run.stale_gradients,
        "history_start": run.start,
    }
    shape = {"layers": LAYERS, "hidden": HIDDEN, "dropout": 0.0, "dtype": "float64", "seed": 4}
    training = {"optimizer": "sgd", "lr": RATE, "weight_decay": 0.0, "epochs": EPOCHS}
    config = make_config(schedule="pipeline", **shape, **training, **techniques, **run.flags)
    trainer = make_trainer(config, open_shard(folder, 0), Group(Alone()), torch.device("cpu"))
    layers = trainer.model.layers
    weights = [(layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in layers]
    paper = GNNPipe(run, graph, weights)
    for record in trainer.epochs():
        t = int(record["epoch"]) + 1
        assert record["chunk_age"] == t - paper.version
        loss, gradients = paper.epoch(t, trainer.schedule.order(t - 1, run.chunks, 4))
        assert record["loss"] == pytest.approx(loss, rel=1e-10)
        for layer, pair in zip(layers, gradients, strict=True):
            for parameter, gradient in zip((layer.weight, layer.bias), pair, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_orders_are_permutations_that_ranks_compute_alone() -> None:
    def order_of(how: str, seed: int = 0) -> list[list[int]]:
        schedule = make_schedule(make_config(schedule="pipeline", chunk_order=how, seed=seed))
        return [schedule.order(epoch, 7, seed) for epoch in range(20)]

    shuffled = order_of("shuffle")
    assert all(sorted(order) == list(range(7)) for order in shuffled)
    assert len(set(map(tuple, shuffled))) == 20, "a new order every epoch"
    assert shuffled == order_of("shuffle") != order_of("shuffle", seed=1)
    assert order_of("fixed") == [list(range(7))] * 20
    assert order_of("alternate")[:2] == [list(range(7)), list(range(7))[::-1]]
