"""Consensus: what one rank alone knows decides for all: signals, other weights, another place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sancus.comm.clock import Clock
from sancus.comm.errors import DisagreementError
from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.metrics.declared import METRICS
from sancus.models.settings import ModelSettings
from sancus.training.consensus import FIGURES, Record, Statement, combine
from sancus.training.settings import TrainingSettings
from sancus.training.times import MEASURED
from sancus.training.trainer import Trainer
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, ODD = 3, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


def trainer_of(group: Group, folder: Path, **training: int) -> Trainer:
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"),
        shape=ModelSettings(hidden=4),
        training=TrainingSettings(epochs=6, **training),  # type: ignore[arg-type]
    )
    return thread_trainer(config, open_own(folder, group), group)


def test_a_signal_of_one_rank_stops_all_after_the_same_epoch(folder: Path) -> None:
    def run(group: Group) -> tuple[int, int]:
        trainer = trainer_of(group, folder)
        if group.rank == ODD:
            trainer.stop_signal = lambda: 15 if group.clock.epoch == 2 else 0
        return len(list(trainer.epochs())), trainer.stopped_by

    assert results(run_threads(RANKS, run)) == [(3, 15)] * RANKS


@pytest.mark.parametrize("every, epoch", [(1, 1), (2, 1), (3, 2)])
def test_a_rank_with_other_weights_is_named_when_they_are_checked(
    folder: Path, every: int, epoch: int
) -> None:
    """Rank 2's weights change by a little after the first epoch."""

    def run(group: Group) -> int:
        trainer = trainer_of(group, folder, check=every)

        def disturb(record: Record) -> None:
            if record["epoch"] == 0 and group.rank == ODD:
                with torch.no_grad():
                    next(trainer.model.parameters())[0, 0] += 1e-3

        with pytest.raises(DisagreementError, match=f"rank {ODD} has other weights than rank 0"):
            trainer.run(disturb)
        return group.clock.epoch

    assert results(run_threads(RANKS, run)) == [epoch] * RANKS


def test_statements_survive_the_wire() -> None:
    figures = {name: index + 0.5 for index, name in enumerate(FIGURES)}
    place = (7, 3, (1 << 63) - 5, (1 << 64) - 1)
    mine = Statement(figures, torch.arange(6).double().view(3, 2), 15, True, place)
    heard = Statement.unpack(mine.pack().tolist())
    assert (heard.figures, heard.signal, heard.unhealthy, heard.place) == (figures, 15, True, place)
    assert torch.equal(heard.score, mine.score)


def test_figures_are_combined_as_declared() -> None:
    """Sums, means and largest values over ranks, by the declaration of each metric."""
    ranks = [
        Statement({name: float(rank + 1) for name in FIGURES}, torch.full((3, 2), rank + 1.0), 0, False, ())
        for rank in range(RANKS)
    ]
    record = combine(ranks, evaluated=True)
    by_rule = {"sum": 6.0, "mean": 2.0, "max": 3.0}
    for name in set(FIGURES) - set(MEASURED):
        assert record[name] == by_rule[METRICS[name].over_ranks], name
    assert record["comm_seconds"] == 4 * 2.0, "three kinds of messages that move something, and agreement"
    assert (record["transfer_seconds"], record["agreement_seconds"]) == (3 * 1.0, 1.0), "the least rank's"
    assert record["waiting_seconds"] == 4 * (2.0 - 1.0)
    assert record["val"] == 1.0
    assert combine(ranks, evaluated=False)["val"] is None


def test_a_clock_begins_epochs_with_step_0_and_ends_evaluation_where_it_began() -> None:
    clock = Clock()
    clock.begin_epoch(3)
    clock.begin_step(2)
    clock.begin_epoch(4)
    assert (clock.epoch, clock.step, clock.exact) == (4, 0, False)
    with clock.during("evaluation"):
        with clock.during("evaluation"):
            assert clock.exact
        assert clock.exact, "an inner evaluation does not end the outer one"
    assert not clock.exact
