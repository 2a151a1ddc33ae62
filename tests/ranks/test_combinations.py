"""Every combination of plan × staleness × backward × codec trains, with the bytes and ages it must have."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.codecs import CODECS
from sancus.comm.group import Group
from sancus.comm.ledger import DIRECTIONS, Ledger
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.figures import run_log
from sancus.exchange.volume import stream_columns
from sancus.graphs.shards import open_shard
from sancus.models.settings import ModelSettings
from sancus.plugins import build
from sancus.runs.build import make_trainer
from sancus.staleness import POLICIES
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.ranks.law import STEADY_PLANS

pytestmark = pytest.mark.slow
EPOCHS = 4
TRAINING = TrainingSettings(epochs=EPOCHS, optimizer="sgd", lr=0.3, weight_decay=0.0, eval_every=EPOCHS)
SHAPE = ModelSettings(layers=2, hidden=6, dropout=0.0)
BACKWARD = ("always", "drop", "epoch-fixed", "pipelined:sync_every=2")
Combination = tuple[str, str, str, str]
COMBINATIONS: list[Combination] = list(product(STEADY_PLANS, POLICIES, BACKWARD, CODECS))
# For MPI, which has its ranks do the same: everything but the plan in all combinations, under plans in turn.
SAMPLE: list[Combination] = [
    (plan, *rest)
    for plan, rest in zip(cycle(STEADY_PLANS), product(POLICIES, BACKWARD, CODECS), strict=False)
]


def walk(group: Group, folder: str, combinations: list[Combination]) -> dict[Combination, dict[str, Any]]:
    """Train every combination for a few epochs; what one rank saw."""
    found = {}
    shard = open_shard(Path(folder), group.rank)
    for combination in combinations:
        plan, staleness, backward, codec = combination
        factors = FactorSettings(plan=plan, staleness=staleness, backward=backward, codec=codec)
        config = Config(factors=factors, shape=SHAPE, training=TRAINING)
        trainer = make_trainer(config, shard, group, torch.device("cpu"))
        group.ledger = Ledger()
        records = list(trainer.epochs())
        crossing, legs = (
            trainer.exchange.crossing,
            (trainer.exchange.plan.forward, trainer.exchange.plan.backward),
        )
        columns = stream_columns(SHAPE.widths(7, 3), trainer.exchange.savings, crossing.policies)
        found[combination] = {
            "losses": [record["loss"] for record in records],
            "wire": [record["wire_bytes"] for record in records],
            "ages": [record["max_age"] for record in records],
            "caps": [policy.max_age for policy in crossing.policies.values()],
            "decisions": run_log(crossing).decisions,
            "rows": [[m.rows_out for r, m in enumerate(leg.make) if r != group.rank] for leg in legs],
            "columns": columns,
        }
    return found


@pytest.fixture(scope="module", params=[("gloo", 2), ("mpi", 3)], ids=str)
def walked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    backend, ranks = request.param
    combinations = SAMPLE if backend == "mpi" else COMBINATIONS
    graph = awkward_graph(nodes=24, features=7, classes=3, seed=1)
    folder = shards_of(graph, "random", ranks, tmp_path_factory.mktemp("shards"))
    function = "tests.ranks.test_combinations:walk"
    return run_ranks(
        function, ranks, backend=backend, timeout=600, folder=str(folder), combinations=combinations
    )


def test_the_loss_falls(walked: list[dict[Any, Any]]) -> None:
    for combination in walked[0]:
        losses = walked[0][combination]["losses"]
        assert np.isfinite(losses).all() and losses[-1] < losses[0], (combination, losses)


def test_no_age_passes_its_cap(walked: list[dict[Any, Any]]) -> None:
    for combination in walked[0]:
        note = walked[0][combination]
        assert max(note["ages"]) <= max(note["caps"]), combination


def test_counted_bytes_equal_the_formula(walked: list[dict[Any, Any]]) -> None:
    """Rows of the plan × bytes of the codec, for every stream that the decisions say was sent.

    Where a policy picks rows that is the most: `tests/unit/test_row_gap.py` counts them by hand.
    """
    for combination in walked[0]:
        notes = [by_rank[combination] for by_rank in walked]
        for epoch in range(1, EPOCHS):  # the first also carries the constant input
            expected = 0
            for (layer, direction), columns in notes[0]["columns"].items():
                side = DIRECTIONS.index(direction)
                for owner, note in enumerate(notes):
                    if note["decisions"][epoch, layer, side, owner] > 0:
                        sizes = [
                            wire_bytes(combination[3], rows, columns, epoch) for rows in note["rows"][side]
                        ]
                        expected += sum(sizes)
            counted, picked = notes[0]["wire"][epoch], combination[1] == "row-gap"
            assert counted == expected or (picked and counted < expected), (combination, epoch)


def wire_bytes(codec: str, rows: int, columns: int, epoch: int) -> int:
    """What a payload weighs: the formulas of the codecs' wire formats, in float32."""
    if codec == "fp32":
        return rows * columns * 4
    if codec in ("fp16", "bf16"):
        return rows * columns * 2
    if codec.startswith("int"):
        return rows * (-(-columns * int(codec[3:]) // 8) + 8)
    stage = epoch / (EPOCHS - 1)
    counts = build("codec", CODECS, codec).row_counts(rows, stage)
    assert sum(counts) == rows
    return -(-rows // 4) + sum(
        n * (-(-columns * b // 8) + 8) for n, b in zip(counts, (1, 2, 4, 8), strict=True)
    )
