"""A bad number that one rank knows of stops all ranks at the sum of gradients, in one epoch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.models.settings import ModelSettings
from sancus.training.settings import TrainingSettings
from sancus.training.weights import checksum
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS, BAD_EPOCH, KNOWING = 3, 2, 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards_of(awkward_graph(), "random", RANKS, tmp_path_factory.mktemp("shards"))


class Strange:
    """A task that on one rank, in one epoch, meets what no gradient shows, or spoils the loss."""

    def __init__(self, task: Any, trainer: Any, what: str) -> None:
        self._task, self._trainer, self._what = task, trainer, what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, logits: torch.Tensor) -> torch.Tensor:
        group = self._trainer.exchange.group
        loss: torch.Tensor = self._task.loss(logits)
        if group.rank == KNOWING and group.clock.epoch == BAD_EPOCH:
            if self._what == "note":
                self._trainer.exchange.crossing.health.note("row 7 is strange")
            else:
                return loss * float("nan")
        return loss


@pytest.mark.parametrize(
    "what, words",
    [("note", "^row 7 is strange$"), ("loss", f"^the loss of rank {KNOWING} is nan in epoch {BAD_EPOCH};")],
)
def test_all_ranks_stop_before_any_weight_moves(folder: Path, what: str, words: str) -> None:
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"),
        shape=ModelSettings(hidden=4, dropout=0.0),
        training=TrainingSettings(epochs=5),
    )

    def run(group: Group) -> tuple[int, int, int]:
        trainer = thread_trainer(config, open_own(folder, group), group)
        trainer._work = replace(trainer._work, task=Strange(trainer.task, trainer, what))  # type: ignore[arg-type]
        sums: list[int] = []
        with pytest.raises(UserError, match=words):
            trainer.run(lambda record: sums.append(checksum(trainer.model)))
        return group.clock.epoch, sums[-1], checksum(trainer.model)

    everyone = results(run_threads(RANKS, run))
    assert {epoch for epoch, _, _ in everyone} == {BAD_EPOCH}
    assert len({number for _, *sums in everyone for number in sums}) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_that_leaves_the_numbers_is_refused_on_any_number_of_ranks(ranks: int, tmp_path: Path) -> None:
    folder = shards_of(awkward_graph(), "random", ranks, tmp_path)
    config = Config(
        factors=FactorSettings(plan="halo", kernel="torch"),
        shape=ModelSettings(hidden=4, dropout=0.0),
        training=TrainingSettings(epochs=1, optimizer="sgd", lr=1e30),
    )

    def run(group: Group) -> bool:
        trainer = thread_trainer(config, open_own(folder, group), group)
        with pytest.raises(UserError, match="NaN or infinity; lower --lr"):
            trainer.run()
        return True

    assert all(results(run_threads(ranks, run)))
