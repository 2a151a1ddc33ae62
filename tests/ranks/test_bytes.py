"""Counted bytes equal the closed formulas of the design, for both presets."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Ledger
from sancus.config.settings import Config, FactorSettings
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.ranks.law import CAGNET

FEATURES, CLASSES, EPOCHS = 7, 3, 3
SHAPES = {"narrowing": ModelSettings(layers=3, hidden=5), "widening": ModelSettings(layers=3, hidden=11)}


def epoch_bytes(group: Group, folder: str) -> dict[str, list[dict[str, Any]]]:
    """The records of a few epochs, for both presets, shapes and models."""
    found = {}
    for preset, factors in (("cagnet", CAGNET), ("exact", FactorSettings(plan="halo"))):
        for shape_name, shape in SHAPES.items():
            for model in ("gcn", "sage"):
                training = TrainingSettings(epochs=EPOCHS, dtype="float64")
                config = Config(model=model, factors=factors, shape=shape, training=training)
                shard = open_shard(Path(folder), group.rank)
                trainer = make_trainer(config, shard, group, torch.device("cpu"))
                group.ledger = Ledger()
                found[f"{preset}-{shape_name}-{model}"] = list(trainer.epochs())
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_counted_bytes_equal_the_formula(ranks: int, tmp_path: Path) -> None:
    graph = awkward_graph(features=FEATURES, classes=CLASSES)
    folder = shards_of(graph, "random", ranks, tmp_path)
    results = run_ranks("tests.ranks.test_bytes:epoch_bytes", ranks, folder=str(folder))
    assert all(result.keys() == results[0].keys() for result in results)
    halo = _halo_rows(graph.adjacency, folder, ranks)
    for name, records in results[0].items():
        preset, shape_name, _ = name.split("-")
        widths = SHAPES[shape_name].widths(FEATURES, CLASSES)
        layers = list(pairwise(widths))
        cagnet = (ranks - 1) * graph.nodes * sum(a + b for a, b in layers) * 8
        exact = halo * sum(2 * min(a, b) for a, b in layers[1:]) * 8
        for record in records:
            once = halo * FEATURES * 8 if record["epoch"] == 0 else 0
            expected = cagnet if preset == "cagnet" else exact + once
            assert record["wire_bytes"] == record["raw_bytes"] == expected, (name, record["epoch"])


def _halo_rows(adjacency: Any, folder: Path, ranks: int) -> int:
    """Distinct remote columns of every rank's rows, straight from the dense matrix."""
    dense = np.array(adjacency.todense()) != 0
    owner = np.empty(len(dense), int)
    for rank in range(ranks):
        owner[open_shard(folder, rank).nodes] = rank
    return sum(
        int((dense[owner == i].any(axis=0) & (owner == j)).sum())
        for i in range(ranks)
        for j in range(ranks)
        if i != j
    )
