"""DIGEST-A by hand: a scripted order of events gives the weights of a simulation, elementwise in float64.

The simulation is dense and knows nothing of `sancus`: eq. 5-6 with Adam by hand are those of `test_digest`;
histories of each receiver, pushes, pulls and merges are written out here. In lock-step it is `digest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.config.resolve import make_config
from sancus.graphs.graph import Graph
from sancus.graphs.shards import open_shard
from sancus.training.merging import digest_of
from sancus.training.script import Event, lockstep
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.reference import dense_adjacency, dense_features
from tests.helpers.scripted import Scripted, drawn_events
from tests.helpers.threads import open_own, results, run_threads, thread_trainer
from tests.papers.test_digest import DECAY, RATE, Part, Weights

RANKS = 3
FLAGS: dict[str, Any] = {
    "layers": 3,
    "hidden": 5,
    "dropout": 0.0,
    "dtype": "float64",
    "kernel": "torch",
    "broadcast": "library",
    "epochs": 9,
    "lr": RATE,
    "weight_decay": DECAY,
}


class Simulation:
    """Parts of a graph, what each of them holds of others, and the weights in the middle."""

    def __init__(
        self, graph: Graph, blocks: list[torch.Tensor], start: Weights, period: int, how: str
    ) -> None:
        self.x, self.period, self.how = dense_features(graph), period, how
        self.labels = torch.from_numpy(np.array(graph.labels))
        self.train = torch.from_numpy(np.array(graph.train_mask))
        adjacency = dense_adjacency(graph, "symmetric")
        self.parts = [Part(adjacency, block, start) for block in blocks]
        self.middle = Part(adjacency, blocks[0], start)  # its weights, and with `gradient` its moments
        self.merges, self.steps = 0, [0] * len(blocks)
        self.stale: list[dict[int, torch.Tensor]] = [{} for _ in blocks]  # [rank][layer] rows of all nodes
        self.shown: list[dict[int, torch.Tensor]] = [{} for _ in blocks]  # [owner][layer] own rows
        self.made: list[Any] = [None] * len(blocks)

    def play(self, events: list[Event], optimizer: str) -> None:
        self.first_steps()
        for what, rank in events:
            if what == "begin":
                self.begin(rank)
            else:
                self.merge(rank, optimizer)

    def first_steps(self) -> None:
        """All ranks, layer after layer, with the rows of that moment."""
        hs = [self.x[part.inside] for part in self.parts]
        traces: list[list[Any]] = [[] for _ in self.parts]
        for layer in range(len(self.middle.weights)):
            fresh = torch.zeros(len(self.x), hs[0].shape[1]).double()
            for part, h in zip(self.parts, hs, strict=True):
                fresh[part.inside] = h
            for rank, part in enumerate(self.parts):
                self.stale[rank][layer] = fresh.clone()
                traces[rank].append(part.forward(layer, hs[rank], fresh))
            hs = [torch.relu(trace[-1][0]) for trace in traces]
        for rank in range(len(self.parts)):
            self.back(rank, traces[rank], {})

    def begin(self, rank: int) -> None:
        part, step = self.parts[rank], self.steps[rank]
        part.weights = [(w.clone(), b.clone()) for w, b in self.middle.weights]
        if step > 1 and (step - 1) % self.period == 0:
            for owner, shown in enumerate(self.shown):
                for layer, rows in shown.items():
                    self.stale[rank][layer][self.parts[owner].inside] = rows
        h, trace, rows = self.x[part.inside], [], {}
        for layer in range(len(part.weights)):
            if layer:
                rows[layer] = h
            trace.append(part.forward(layer, h, self.stale[rank][layer]))
            h = torch.relu(trace[-1][0])
        self.back(rank, trace, rows if step % self.period == 0 else {})

    def back(self, rank: int, trace: list[Any], rows: dict[int, torch.Tensor]) -> None:
        """The local gradient, taken p times."""
        part, count, p = self.parts[rank], int(self.train.sum()), len(self.parts)
        zs, sums = zip(*trace, strict=True)
        own, labels = self.train[part.inside], self.labels[part.inside]
        truth = torch.eye(zs[-1].shape[1]).double()[labels]
        delta = (torch.softmax(zs[-1], dim=1) - truth) * own[:, None] / count
        gradients = [(p * w, p * b) for w, b in part.backward(list(zs), list(sums), delta)]
        base = [(w.clone(), b.clone()) for w, b in part.weights]
        self.made[rank] = (base, gradients, rows)

    def merge(self, rank: int, optimizer: str) -> None:
        base, gradients, rows = self.made[rank]
        part, p = self.parts[rank], len(self.parts)
        if self.how == "delta":
            part.weights = base
            before = [(w.clone(), b.clone()) for w, b in base]
            part.step(gradients, self.steps[rank], optimizer)
            after = part.weights
        else:  # one optimiser in the middle, whose rate is 1/p of the run's
            before = [(w.clone(), b.clone()) for w, b in self.middle.weights]
            middle = [(w.clone(), b.clone()) for w, b in self.middle.weights]
            self.middle.step(gradients, self.merges, optimizer)
            after, self.middle.weights = self.middle.weights, middle
        for pair, old, new in zip(self.middle.weights, before, after, strict=True):
            for place in (0, 1):
                pair[place].add_((new[place] - old[place]) / p)
        self.shown[rank] |= rows
        self.steps[rank] += 1
        self.merges += 1


def flat(weights: Weights) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for pair in weights for tensor in pair])


def unflat(vector: torch.Tensor, shapes: list[torch.Size]) -> Weights:
    parts = iter(vector.split([shape.numel() for shape in shapes]))
    tensors = [next(parts).view(shape).clone() for shape in shapes]
    return list(zip(tensors[::2], tensors[1::2], strict=True))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return awkward_graph(nodes=29, seed=3)


@pytest.fixture(scope="module")
def folder(graph: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(graph, "random", RANKS, tmp_path_factory.mktemp("shards"))


def scripts() -> Iterator[tuple[str, str, int, list[Event]]]:
    """How, optimiser, period, events."""
    for how in ("delta", "gradient"):
        for optimizer in ("adam", "sgd"):
            yield how, optimizer, 2, lockstep(RANKS, 7)
            for seed in range(3):
                yield how, optimizer, 1 + seed, drawn_events(RANKS, 30, seed)


@pytest.mark.parametrize("how, optimizer, period, events", list(scripts()))
def test_a_script_is_its_simulation(
    folder: Path, graph: Graph, how: str, optimizer: str, period: int, events: list[Event]
) -> None:
    config = make_config(preset=f"digest-a:{period}", merge=how, optimizer=optimizer, **FLAGS)
    scripted = Scripted(folder, RANKS, config)
    shapes = [p.shape for p in scripted.trainers[0].model.parameters()]
    blocks = [torch.from_numpy(open_shard(folder, rank).nodes.copy()) for rank in range(RANKS)]
    simulation = Simulation(graph, blocks, unflat(scripted.initial, shapes), period, how)
    found = scripted.play(events)
    simulation.play(events, optimizer)
    torch.testing.assert_close(found, flat(simulation.middle.weights), rtol=1e-9, atol=1e-12)
    assert not torch.equal(found, scripted.initial)


LIKE_DIGEST: list[dict[str, Any]] = [
    {},
    *({"model": model} for model in ("sage", "gin", "gat", "gatv2", "gcnii", "resgcn+")),
    *({"plan": plan} for plan in ("block", "prepost")),
    {"plan": "block", "model": "gat"},
    {"codec": "int4"},
    {"codec": "int2", "error_feedback": True},
    {"dropout": 0.5},
    {"model": "gat", "attention_dropout": 0.5},
    {"reuse_input": False, "order": "aggregate-kept"},
    {"staleness": "drop"},
    {"lr_schedule": "cosine", "warmup": 2},
    {"inductive": True},
    {"norm": "layer", "residual": True},
]


@pytest.mark.parametrize("flags", LIKE_DIGEST, ids=str)
def test_in_lockstep_it_is_digest(folder: Path, flags: dict[str, Any]) -> None:
    """For every model, plan and codec; ages are digest's too."""
    settings = FLAGS | {"layers": 2, "hidden": 6, "heads": 2, "optimizer": "sgd"} | flags
    scripted = Scripted(folder, RANKS, make_config(preset="digest-a:3", **settings))
    found = scripted.play(lockstep(RANKS, 9))

    def train(group: Any) -> tuple[list[Any], torch.Tensor]:
        config = make_config(preset="digest:3", **settings)
        trainer = thread_trainer(config, open_own(folder, group), group)
        ages = [record["max_age"] for record in trainer.epochs()]
        return ages, torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()])

    ages, expected = results(run_threads(RANKS, train))[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert sorted(scripted.merger.books.ages) == sorted(set(ages) - {0})


def test_every_merge_is_one_upload_and_versions_never_go_back(folder: Path) -> None:
    scripted = Scripted(folder, RANKS, make_config(preset="digest-a:2", **FLAGS))
    scripted.play(drawn_events(RANKS, 40, seed=9))
    books, log = scripted.merger.books, scripted.log
    assert books.merges == sum(books.steps) == len(log) == 40
    assert [row["merge"] for row in log] == list(range(1, 41))
    assert log[-1]["weights"] == digest_of(scripted.merger.weights)
    for rank in range(RANKS):
        own = [row for row in log if row["rank"] == rank]
        assert [row["step"] for row in own] == list(range(books.steps[rank]))
        assert [row["base"] for row in own] == sorted(row["base"] for row in own)
        last: dict[tuple[int, int], int] = {}
        for row in own:
            for layer, owner, version in row["used"]:
                assert version > last.get((layer, owner), -1)
                last[layer, owner] = version
    assert sum(books.delays.values()) == 40


def test_one_rank_is_plain_training(graph: Graph, tmp_path: Path) -> None:
    folder = shards_of(graph, "random", 1, tmp_path)
    weights = []
    for preset in ("digest-a:2", "exact"):
        trainer = results(
            run_threads(
                1,
                lambda group, preset=preset: thread_trainer(
                    make_config(preset=preset, **FLAGS), open_own(folder, group), group
                ),
            )
        )[0]
        trainer.run()
        weights.append(torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-9, atol=1e-12)
