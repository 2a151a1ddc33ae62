"""What travels in the background overlaps with work, arrives once, and fails for everybody."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry, Stream
from sancus.config.settings import Config, FactorSettings
from sancus.exchange.full_graph import FullGraph
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks

RANKS = 3
DEADLINE = 120.0
OVERHEAD = 64  # bytes of a header that the caller checks: nothing is left to unpack, what arrives is seen
BACKENDS = pytest.mark.parametrize("backend", ["gloo", "mpi"])


def prepare(group: Group, folder: str, plan: str) -> FullGraph:
    factors = FactorSettings(plan=plan, staleness="pipelined", backward="pipelined")
    config = Config(factors=factors, training=TrainingSettings(dtype="float64"))
    shard = open_shard(Path(folder), group.rank)
    return make_trainer(config, shard, group, torch.device("cpu")).exchange


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards")))


def overlap(group: Group, started: Path) -> tuple[bool, bool]:
    """A background transfer while this rank works: all there before it waited? some time hidden?

    The others begin when rank 0 has begun, so that its transfer cannot end before it is under way.
    """
    size = 1 << 22
    out = torch.full((size * (RANKS - 1),), group.rank + 1, dtype=torch.uint8)
    received = torch.empty_like(out)
    counts = [0 if rank == group.rank else size for rank in range(RANKS)]
    expected = torch.cat(
        [torch.full((size,), r + 1, dtype=torch.uint8) for r in range(RANKS) if r != group.rank]
    )
    entry = Entry("payload", Stream(0, "forward", group.rank))
    few = [min(count, 1) for count in counts]  # the first makes the way on which the others travel
    group.all_to_all(out[: RANKS - 1], few, received[: RANKS - 1], few, entry, background=True).wait()
    received.zero_()
    before = group.stopwatch.read()
    deadline = time.monotonic() + DEADLINE
    while group.rank and not started.exists() and time.monotonic() < deadline:
        group.progress()
    handle = group.all_to_all(out, counts, received, counts, entry, OVERHEAD, background=True)
    started.touch()
    while not (arrived := torch.equal(received, expected)) and time.monotonic() < deadline:
        torch.ones(100, 100) @ torch.ones(100, 100)
        group.progress()
    handle.wait()
    return arrived, group.stopwatch.since(before).hidden > 0


@BACKENDS
def test_a_transfer_makes_progress_while_ranks_compute(backend: str, tmp_path: Path) -> None:
    function = "tests.ranks.test_background:overlap"
    seen = run_ranks(function, RANKS, backend=backend, started=tmp_path / "started")
    assert [arrived for arrived, _ in seen] == [True] * RANKS
    assert seen[0][1]


def interleave(group: Group, folder: str) -> bool:
    """Evaluations, agreements and sums while payloads are under way do not disturb them."""
    exchange = prepare(group, folder, "halo")
    nodes = exchange.nodes.double()
    same = True
    for epoch in range(5):
        exchange.begin_epoch(epoch)
        stale = exchange.mover.aggregate((nodes + epoch)[:, None], 0, "forward")
        with exchange.exact():
            fresh = exchange.mover.aggregate((nodes + epoch)[:, None], 0, "forward")
            before = exchange.mover.aggregate((nodes + max(0, epoch - 1))[:, None], 0, "forward")
        total = torch.ones(3, dtype=torch.float64)
        group.all_reduce(total)
        own = exchange.plan.forward.diagonal.apply((nodes + epoch)[:, None])
        old = exchange.plan.forward.diagonal.apply((nodes + max(0, epoch - 1))[:, None])
        same &= torch.allclose(stale, own + (before - old)) and bool((total == RANKS).all())
        same &= epoch == 0 or not torch.allclose(stale, fresh)
    exchange.crossing.drain()
    versions = [
        exchange.crossing.memory.history.version(Stream(0, "forward", r))
        for r in range(RANKS)
        if r != group.rank
    ]
    return same and versions == [4] * (RANKS - 1)


@BACKENDS
def test_nothing_disturbs_what_is_under_way(folder: str, backend: str) -> None:
    assert all(run_ranks("tests.ranks.test_background:interleave", RANKS, backend=backend, folder=folder))


def miscount(group: Group, folder: str, plan: str) -> str:
    """Rank 1 has lost count of the uses; what it sends in the background is refused when it is needed."""
    exchange = prepare(group, folder, plan)
    rows = torch.ones(len(exchange.nodes), 2, dtype=torch.float64)
    for epoch in range(4):
        exchange.begin_epoch(epoch)
        slip = int(epoch == 2 and group.rank == 1)
        group.number += slip
        exchange.mover.aggregate(rows, 0, "forward")
        group.number -= slip
    return "no error"


@pytest.mark.parametrize("plan", ["block", "halo"])
@BACKENDS
def test_a_wrong_payload_from_the_background_is_an_error(folder: str, backend: str, plan: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        run_ranks("tests.ranks.test_background:miscount", RANKS, backend=backend, folder=folder, plan=plan)
    assert "DisagreementError: rank" in str(failure.value)
    assert "epoch 2) has sequence" in str(failure.value)


def vanish(group: Group, folder: str) -> str:
    """Rank 1 dies with a payload under way; the others learn of it when they need what it owed them."""
    exchange = prepare(group, folder, "halo")
    rows = torch.ones(len(exchange.nodes), 2, dtype=torch.float64)
    for epoch in range(4):
        exchange.begin_epoch(epoch)
        if epoch == 2 and group.rank == 1:
            os._exit(9)
        exchange.mover.aggregate(rows, 0, "forward")
    return "no error"


def test_a_rank_that_dies_is_an_error_of_the_others(folder: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        run_ranks("tests.ranks.test_background:vanish", RANKS, folder=folder)
    story = str(failure.value)
    assert "exit codes by rank: [1, 9, 1]" in story, story
    assert story.count("CommError: rank") == RANKS - 1, story
