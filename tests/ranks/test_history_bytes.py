"""Measured history bytes equal the closed formula, and have the shape of the paper's Table 6."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.volume import history_bytes, stream_columns
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks

NODES, FEATURES, CLASSES = 24, 7, 3
SHAPE = ModelSettings(layers=3, hidden=5)
SETTINGS = [
    (plan, backward, savings, order)
    for plan in ("block", "halo")
    for backward in ("always", "epoch-fixed:bound=2", "variation-gap:gap=0.1", "drop")
    for savings in (True, False)
    for order in ("auto", "aggregate-first", "aggregate-kept", "transform-first")
]


def measure(group: Group, folder: str) -> list[tuple[int, int]]:
    """(measured, predicted) history bytes of this rank, for every setting."""
    found = []
    for plan, backward, savings, order in SETTINGS:
        factors = FactorSettings(
            plan=plan,
            staleness="epoch-fixed:bound=1",
            backward=backward,
            reuse_input=savings,
            skip_input_gradient=savings,
            order=order,
        )
        config = Config(factors=factors, shape=SHAPE, training=TrainingSettings(epochs=1))
        shard = open_shard(Path(folder), group.rank)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        trainer.run()
        exchange = trainer.exchange
        policies = exchange.crossing.policies
        columns = stream_columns(SHAPE.widths(FEATURES, CLASSES), exchange.savings, policies)
        predicted = history_bytes(exchange.plan, group.rank, columns, policies, 4)
        found.append((exchange.crossing.figures().history_bytes, predicted))
    return found


@pytest.mark.parametrize("ranks", [2, 4])
def test_measured_equals_predicted_and_table_6(ranks: int, tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(NODES, FEATURES, CLASSES), "contiguous", ranks, tmp_path)
    results = run_ranks("tests.ranks.test_history_bytes:measure", ranks, folder=str(folder))
    widths = SHAPE.widths(FEATURES, CLASSES)
    for result in results:
        assert all(measured == predicted for measured, predicted in result)
        assert any(measured for measured, _ in result)
        for setting, (measured, _) in zip(SETTINGS, result, strict=True):
            if setting == ("block", "always", False, "aggregate-first"):
                assert measured == (ranks - 1) * NODES // ranks * sum(widths[:-1]) * 4
