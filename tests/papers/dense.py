"""What every transcription of a paper stands on: a small graph as dense float64 matrices, and its real ranks.

A transcription computes, in one process and by the paper's own formulas, what p ranks hold after each epoch;
`train_ranks` says what they really held. In a transcription nothing of `sancus` computes, nor any autograd.

    problem = make_problem(tmp_path, ranks=3)
    ranks = train_ranks(problem, epochs=5, preset="cagnet")
    weights = ranks.initial                                    # [f_in, f_out] of every layer
    for epoch in range(5):
        z, …                                                   # the paper, line by line
        assert_close(problem.loss(z), ranks.losses[epoch])
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.exchange.figures import run_log
from sancus.graphs.shards import open_shard
from sancus.models.neighbourhood import Neighbourhood
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

LEARNING_RATE = 0.5
SEED = 4  # of the weights
FEATURES, CLASSES = 5, 4  # of the graph: the first and the last width of a network
Matrices = list[torch.Tensor]


@dataclass(frozen=True)
class Problem:
    """A graph, and whose rows are whose."""

    a: torch.Tensor  # Â [N, N]
    x: torch.Tensor  # H⁰ [N, FEATURES]
    labels: torch.Tensor  # [N]
    train: torch.Tensor  # [N] bool
    blocks: list[torch.Tensor]  # the nodes of every rank, in the order of its rows
    folder: Path  # its shards

    def needed(self, receiver: int, owner: int) -> torch.Tensor:
        """The nodes of `owner` that `receiver` has an edge to: its halo there, papers say boundary."""
        block = self.blocks[owner]
        return block[(self.a[self.blocks[receiver]][:, block] != 0).any(dim=0)]

    def split(self, rows: torch.Tensor) -> Matrices:
        """The rows `[N, f]` of every rank."""
        return [rows[block] for block in self.blocks]

    def whole(self, blocks: Matrices) -> torch.Tensor:
        """The other way round: `[N, f]`."""
        rows = blocks[0].new_empty(len(self.a), blocks[0].shape[1])
        for nodes, block in zip(self.blocks, blocks, strict=True):
            rows[nodes] = block
        return rows

    def loss(self, z: torch.Tensor) -> float:
        """Cross-entropy of the logits `z [N, CLASSES]`, the mean over the training nodes."""
        rows = torch.log_softmax(z, dim=1)[self.train]
        return -rows[torch.arange(len(rows)), self.labels[self.train]].mean().item()

    def output_delta(self, z: torch.Tensor) -> torch.Tensor:
        """`∂L/∂Z [N, CLASSES]` of the logits: softmax minus truth on training nodes, over their number."""
        truth = torch.nn.functional.one_hot(self.labels, z.shape[1]).to(z)
        return (torch.softmax(z, dim=1) - truth) * self.train[:, None] / self.train.sum()


@dataclass(frozen=True)
class Ranks:
    """What real ranks held: the same on all of them, but for what the losses add up."""

    initial: Matrices  # weights before the first epoch
    losses: list[float]  # of every epoch, added up over ranks
    gradients: list[Matrices]  # [epochs][layers], as the optimiser saw them
    weights: list[Matrices]  # [epochs][layers], after the update
    decisions: npt.NDArray[np.int8]  # [epochs, layers, 2, p]: see `Decisions.as_array`


class Network(nn.Module):
    """A GCN as papers write it, without bias: `Z = Â H W`, `H = ReLU(Z)`; the last layer gives logits."""

    normalisation = "symmetric"
    linear = True
    hidden_widths: ClassVar[tuple[int, ...]]

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.widths = [features, *self.hidden_widths, classes]
        self.weights = nn.ParameterList(
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(pair)))
            for pair in itertools.pairwise(self.widths)
        )

    def forward(self, x: torch.Tensor, exchange: Neighbourhood) -> torch.Tensor:
        h = x
        for layer, weight in enumerate(self.weights):
            z = exchange.propagate(h, layer, weight)
            h = torch.relu(z)
        return z


def make_problem(folder: Path, ranks: int, *, nodes: int = 26, seed: int = 5) -> Problem:
    """An undirected graph on so many ranks, whose blocks differ in size."""
    graph = awkward_graph(nodes, FEATURES, CLASSES, seed=seed, directed=False)
    shards = shards_of(graph, "random", ranks, folder)
    return Problem(
        dense_adjacency(graph, "symmetric"),
        dense_features(graph),
        torch.from_numpy(np.array(graph.labels)),
        torch.from_numpy(np.array(graph.train_mask)),
        [torch.from_numpy(open_shard(shards, rank).nodes.copy()) for rank in range(ranks)],
        shards,
    )


def train_ranks(problem: Problem, epochs: int, widths: tuple[int, ...] = (6, 3), **flags: Any) -> Ranks:
    """Train a `Network` by plain SGD under the flags of `sancus train`, on ranks that are threads."""
    settings: dict[str, Any] = {
        "epochs": epochs,
        "optimizer": "sgd",
        "lr": LEARNING_RATE,
        "weight_decay": 0.0,
        "dtype": "float64",
        "kernel": "torch",
        "broadcast": "library",  # threads have no ring
        "seed": SEED,
    }
    config = make_config(**(settings | flags))

    network = type("Network", (Network,), {"hidden_widths": widths})

    def run(group: Group) -> Ranks:
        trainer = thread_trainer(config, open_own(problem.folder, group), group, model=network)
        parameters = list(trainer.model.parameters())
        note = Ranks(_copies(parameters), [], [], [], np.empty(0))
        for epoch in range(epochs):
            note.losses.append(trainer.train_epoch(epoch))
            note.gradients.append(_copies([p.grad for p in parameters if p.grad is not None]))
            note.weights.append(_copies(parameters))
        log = run_log(trainer.exchange.crossing)
        return Ranks(note.initial, note.losses, note.gradients, note.weights, log.decisions)

    notes: list[Ranks] = results(run_threads(len(problem.blocks), run))
    for note in notes[1:]:
        torch.testing.assert_close(note.weights, notes[0].weights, rtol=0, atol=0)
        np.testing.assert_array_equal(note.decisions, notes[0].decisions)
    first = notes[0]
    smallest = min(gradient.abs().max().item() for epoch in first.gradients for gradient in epoch)
    assert smallest > 1e-4, "these weights leave some layer without a gradient; choose another seed"
    losses = [sum(shares) for shares in zip(*(note.losses for note in notes), strict=True)]
    return Ranks(first.initial, losses, first.gradients, first.weights, first.decisions)


def assert_equal(found: Any, expected: Any, what: str = "") -> None:
    """Elementwise in float64, up to the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=lambda text: f"{what}: {text}")


def _copies(tensors: Any) -> Matrices:
    return [tensor.detach().clone() for tensor in tensors]
