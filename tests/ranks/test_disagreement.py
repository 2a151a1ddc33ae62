"""Ranks that decide differently never use a wrong number: an error names the rank, on gloo and on MPI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.exchange.full_graph import FullGraph
from sancus.graphs.shards import open_shard
from sancus.runs.build import check_agreement, make_trainer
from sancus.staleness.base import Replicated, View
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks

RANKS = 3


@dataclass(frozen=True)
class Rogue(Replicated):
    """Not a pure function of its view: one rank answers differently in epoch 2."""

    rank: int
    rogue: int
    max_age: ClassVar[int] = 5

    def decide(self, view: View) -> bool:
        return view.epoch == 2 and self.rank == self.rogue


def prepare(group: Group, folder: str, plan: str) -> FullGraph:
    config = Config(factors=FactorSettings(plan=plan), training=TrainingSettings(dtype="float64"))
    shard = open_shard(Path(folder), group.rank)
    return make_trainer(config, shard, group, torch.device("cpu")).exchange


def differ(group: Group, folder: str, plan: str, rogue: int) -> str:
    """Three epochs under a rogue policy; the error that this rank gets."""
    exchange = prepare(group, folder, plan)
    policy = Rogue(group.rank, rogue)
    exchange.crossing.policies = {"forward": policy, "backward": policy}
    exchange.crossing.agreement.policies = exchange.crossing.policies
    h = torch.ones(len(exchange.nodes), 4, dtype=torch.float64)
    for epoch in range(2):
        exchange.begin_epoch(epoch)
        exchange.mover.aggregate(h, 0, "forward")
    try:
        exchange.begin_epoch(2)
    except DisagreementError as error:
        return str(error)
    return "no error"


def slip(group: Group, folder: str, plan: str, rogue: int) -> str:
    """One rank leaves out a use behind everyone's back; whatever is received must not be used."""
    exchange = prepare(group, folder, plan)
    group.transport.timeout = 5.0
    exchange.begin_epoch(0)
    rows = torch.full((len(exchange.nodes), 4), float(group.rank), dtype=torch.float64)
    for layer in range(3):
        if not (group.rank == rogue and layer == 1):
            exchange.mover.aggregate(rows + 10.0 * layer, layer, "forward")
    return "no error"


def mistyped(group: Group, folder: str, what: str) -> str:
    """Rank 2 was started with another seed, or on other data; the error that every rank gets."""
    odd = group.rank == 2
    config = Config(training=TrainingSettings(seed=int(odd and what == "settings")))
    shard = open_shard(Path(folder), group.rank)
    if odd and what == "data":
        shard.manifest["checksums"]["rank-0/nodes.npy"] = "another"
    try:
        check_agreement(group, config, shard, torch.device("cpu"))
    except UserError as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards")))


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_different_answers_are_found_before_anyone_acts(folder: str, backend: str) -> None:
    function = "tests.ranks.test_disagreement:differ"
    results = run_ranks(function, RANKS, backend=backend, folder=folder, plan="block", rogue=1)
    assert all(re.match(r"rank 1 disagrees with rank 0 in epoch 2: its answers is", r) for r in results)


@pytest.mark.parametrize("what", ["settings", "data"])
def test_all_ranks_mean_the_same_run(folder: str, what: str) -> None:
    results = run_ranks("tests.ranks.test_disagreement:mistyped", RANKS, folder=folder, what=what)
    assert all(result.startswith(f"rank 2 has other {what} than rank 0") for result in results)


@pytest.mark.parametrize("plan", ["block", "halo"])
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_a_left_out_collective_is_an_error(folder: str, backend: str, plan: str) -> None:
    function = "tests.ranks.test_disagreement:slip"
    with pytest.raises(pytest.fail.Exception) as failure:
        run_ranks(function, RANKS, backend=backend, folder=folder, plan=plan, rogue=2)
    story = str(failure.value)
    caught = rf"({DisagreementError.__name__}|{CommError.__name__}): rank \d: "
    assert re.search(caught, story), story
    assert "no error" not in story
