"""Faults of a pipeline: another order of chunks on one rank, a number that is not finite, killed stages."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from unittest import mock

import pytest
import torch

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule
from sancus.training.pipeline import Pipeline
from sancus.training.trainer import Trainer
from tests.helpers.command import losses, run, started
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.processes import run_ranks
from tests.helpers.strike import assert_all_gone, children_of, ranks_of
from tests.ranks.pipeline_cases import Case

STAGES, ODD, AT = 3, 1, 1
CASE = Case("faults", "gcn")
DEADLINE = 900.0


def trainer_of(group: Group, folder: str) -> Trainer:
    config = CASE.config(STAGES)
    part = make_schedule(config).layout(group.size).place(group.rank).part
    return make_trainer(config, open_shard(Path(folder), part), group, torch.device("cpu"))


def ended(trainer: Trainer) -> str:
    """Train until something happens; how it is called."""
    try:
        list(trainer.epochs())
    except (UserError, CommError, DisagreementError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def disagree(group: Group, folder: str) -> str:
    """The middle stage has another order of chunks in the second epoch."""
    order = Pipeline.order

    def another(schedule: Pipeline, epoch: int, chunks: int, seed: int) -> list[int]:
        found = order(schedule, epoch, chunks, seed)
        return found[::-1] if group.rank == ODD and epoch == AT else found

    with mock.patch.object(Pipeline, "order", another):
        return ended(trainer_of(group, folder))


def spoil(group: Group, folder: str, where: str) -> tuple[str, bool]:
    """In the second epoch the middle stage makes NaN; how it ended, and whether no weight has moved."""
    trainer = trainer_of(group, folder)
    weight = trainer.model.layers[2].weight  # of four layers in three stages: two, one and one
    kept: dict[str, torch.Tensor] = {}
    if group.rank == ODD and where == "gradient":
        weight.register_hook(lambda gradient: gradient * math.nan if group.clock.epoch == AT else gradient)
    train_epoch = trainer.train_epoch

    def noted(epoch: int) -> float:
        if epoch == AT:
            if group.rank == ODD and where == "rows":
                with torch.no_grad():
                    weight[0, 0] = math.nan
            kept.update({name: p.detach().clone() for name, p in trainer.model.named_parameters()})
        return train_epoch(epoch)

    trainer.train_epoch = noted  # type: ignore[method-assign]
    how = ended(trainer)
    named = dict(trainer.model.named_parameters())
    same = all(torch.equal(value.nan_to_num(), named[name].nan_to_num()) for name, value in kept.items())
    return how, bool(kept) and same


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(shards_of(awkward_graph(), "random", 1, tmp_path_factory.mktemp("shards"), CASE.chunks))


def test_another_order_of_chunks_on_one_rank_is_named(folder: str) -> None:
    found = run_ranks(f"{__name__}:disagree", STAGES, folder=folder)
    says = f"rank {ODD} disagrees with rank 0 in epoch {AT}: its chunks go in another order"
    assert found == [f"DisagreementError: {says}"] * STAGES


@pytest.mark.parametrize(
    "where, says",
    [
        ("rows", f"rank {ODD}, stage {ODD}, forward, epoch {AT}: what it hands on of chunk"),
        ("gradient", f"rank {ODD}, backward, epoch {AT}: the gradient of layers.2.weight holds NaN"),
    ],
)
def test_a_stage_that_makes_nan_is_named_on_all_before_any_weight_moves(
    folder: str, where: str, says: str
) -> None:
    for how, unmoved in run_ranks(f"{__name__}:spoil", STAGES, folder=folder, where=where):
        assert how.startswith("UserError: ") and says in how, how
        assert unmoved


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_stages_do_no_harm(tmp_path: Path) -> None:
    """First, middle and last stage are killed, one after another; the run ends as if nothing was."""
    flags = ("synthetic:nodes=90,features=8,classes=3,degree=6,seed=2", "--preset", "gnnpipe", "--quiet")
    work = (*flags, "--layers", "3", "--hidden", "6", "--chunks", "4", "--epochs", "60", "--threads", "1")
    calm, out = tmp_path / "calm", tmp_path / "struck"
    undisturbed = run("train", *work, "--out", calm, launcher="local", ranks=STAGES)
    assert undisturbed.code == 0, undisturbed
    options = ("--checkpoint-every", "4", "--restarts", "20", "--out", out)
    left, seen, before = list(range(STAGES)), set[int](), dict[int, int]()
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + DEADLINE
    with started("train", *work, *options, launcher="local", ranks=STAGES) as process:
        while process.alive() and left:
            assert time.monotonic() < deadline, process.finish(0)
            time.sleep(0.02)
            now = ranks_of(process.pid)
            epochs = len(metrics.read_text().splitlines()) if metrics.exists() else 0
            again = len(now) == STAGES and not set(now.values()) & set(before.values())
            if again and epochs >= 5 * (STAGES - len(left) + 1):
                seen |= children_of(process.pid)
                os.kill(now[left.pop(0)], signal.SIGKILL)
                before = now
        result = process.finish(DEADLINE)
    assert result.code == 0, result
    assert result.err.count("sancus: starting again") == STAGES - len(left) >= 1, result
    assert losses(out) == losses(calm)
    assert_all_gone(seen)
