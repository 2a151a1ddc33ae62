"""Where bits go: a row's weight is the sum of squares of what receivers multiply it with; it draws bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from sancus.codecs.auto import AutoBits
from sancus.codecs.base import Moment
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.models.settings import ModelSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer
from tests.unit.test_plans import Cut, cut, dense_of, leg_of, plans_of

RANKS = 3


@pytest.fixture(scope="module", params=["symmetric", "mean"])
def graph(request: pytest.FixtureRequest) -> Cut:
    """Directed and weighted, so that neither a transpose nor a missing square goes unseen."""
    draws = np.random.default_rng(4)
    weights = (draws.random((17, 17)) < 0.3) * (draws.random((17, 17)) + 0.5)
    assignment = draws.integers(0, RANKS, 17)
    return cut(sp.csr_array(weights.astype(np.float32)), assignment, RANKS, request.param)


@pytest.mark.parametrize("name", ["block", "halo", "prepost"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_weights_are_the_squares_of_what_receivers_multiply_with(
    graph: Cut, name: str, direction: str
) -> None:
    legs = [leg_of(plan, direction) for plan in plans_of(name, graph)]
    distinct = set()
    for owner, leg in enumerate(legs):
        used = {
            receiver: dense_of(legs[receiver].add[owner]).square().sum(dim=0)
            for receiver in range(RANKS)
            if receiver != owner
        }
        for receiver, squares in used.items():
            expected = torch.stack(list(used.values())).sum(dim=0) if leg.broadcast else squares
            torch.testing.assert_close(leg.weight[receiver].double(), expected, rtol=1e-5, atol=1e-6)
            distinct |= set(expected.tolist())
    if (name, direction) != ("halo", "backward"):  # there rows are added as they are: all weights are 1
        assert len(distinct) > 3, "the graph tells weights apart"


def test_heavier_rows_get_more_bits() -> None:
    """The widths stand first in the wire: two bits a row, four rows a byte, lowest bits first."""
    codec, rows = AutoBits(budget=3.0), 40
    draws = torch.Generator().manual_seed(0)
    payload = torch.rand(rows, 6, generator=draws)
    payload[:, 0], payload[:, 1] = 0.0, 1.0  # every row has the same range
    weight = torch.randperm(rows, generator=draws).float() + 1
    wire = codec.encode(payload, Moment(1, 0.5), weight)
    widths = torch.tensor([int(wire[row // 4, 0]) >> 2 * (row % 4) & 3 for row in range(rows)])
    assert len(widths.unique()) == 4
    assert (widths[weight.argsort()].diff() >= 0).all()
    wide = codec.encode(payload * 10 * weight[:, None], Moment(1, 0.5), torch.ones(rows))
    assert torch.equal(wide[: rows // 4], wire[: rows // 4]), "a wide range weighs like a weight"


class Spy:
    """A codec in front of another: notes the weights that it is asked to encode with."""

    def __init__(self, codec: Any) -> None:
        self.codec, self.lossless, self.wire, self.decode = codec, codec.lossless, codec.wire, codec.decode
        self.weights: list[torch.Tensor] = []

    def encode(self, payload: torch.Tensor, moment: Moment, weight: torch.Tensor) -> torch.Tensor:
        assert len(payload) == len(weight)
        self.weights.append(weight)
        wire: torch.Tensor = self.codec.encode(payload, moment, weight)
        return wire


@pytest.mark.parametrize("plan", ["block", "halo", "prepost"])
def test_the_codec_is_told_the_weights_of_the_plan(plan: str, tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(), "random", RANKS, tmp_path)
    config = Config(
        factors=FactorSettings(plan=plan, codec="auto", kernel="torch", broadcast="library"),
        shape=ModelSettings(hidden=4, dropout=0.0),
    )

    def run(group: Group) -> None:
        trainer = thread_trainer(config, open_own(folder, group), group)
        crossing = trainer.exchange.crossing
        spies = {}
        for side, delivery in crossing._deliveries.items():
            spies[side] = delivery.encoder.codec = Spy(delivery.encoder.codec)
        trainer.train_epoch(0)
        for side, spy in spies.items():
            leg = getattr(trainer.exchange.plan, side)
            others = [rank for rank in range(RANKS) if rank != group.rank]
            expected = [leg.weight[group.rank]] if leg.broadcast else [leg.weight[rank] for rank in others]
            expected = [weight for weight in expected if len(weight)]
            assert len(spy.weights) == len(expected)
            assert all(torch.equal(*pair) for pair in zip(spy.weights, expected, strict=True)), side

    results(run_threads(RANKS, run))
