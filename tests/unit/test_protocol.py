"""The protocol between ranks in every order of things: a sample of `make protocol`, and bugs it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.handle import Handle
from sancus.config.settings import FactorSettings
from sancus.exchange import crossing
from sancus.exchange.agreement import Agreement
from sancus.store.features import Fetching
from sancus.training.consensus import Consensus, Statement
from sancus.training.stage import Stage
from tests.protocol.__main__ import _known, recorded, row
from tests.protocol.explorer import ViolationError
from tests.protocol.play import Program
from tests.protocol.programs import ExchangeProgram, Ground, Setting, TrainingProgram
from tests.protocol.settings import (
    BATCHES,
    EXCHANGES,
    SAMPLE,
    STAGES,
    Explored,
    everything,
    explore_setting,
    key_of,
)

GROUND = Ground()
EXACT = FactorSettings(plan="block", broadcast="library")
DONE = {"done done"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def explored(make: Callable[..., Program], setting: Setting, folder: Path, **how: Any) -> Any:
    return explore_setting(make, setting, GROUND, folder, **how).count


@pytest.mark.parametrize(("make", "setting", "how"), SAMPLE, ids=lambda given: getattr(given, "name", ""))
def test_every_order_of_things_ends_well(
    make: Callable[..., Program], setting: Setting, how: dict[str, bool], tmp_path: Path
) -> None:
    count = explored(make, setting, tmp_path, **how)
    assert count.states > 50 and count.outcomes["done done"] >= 1
    assert (count.crashes > 0) == how["crashes"]
    assert ("crashed error" in count.outcomes) == how["crashes"]


def test_a_line_that_is_left_says_what_was_not_followed(tmp_path: Path) -> None:
    make, setting, how = SAMPLE[0]
    begun = explored(make, setting, tmp_path, plays=3, **how)
    assert begun.plays == 3 and begun.left > 0
    assert "(begun)" in row(Explored(setting, True, begun))
    known = {key_of(EXCHANGES[0], True): begun}
    place = everything().index((ExchangeProgram, EXCHANGES[0])), True
    assert not _known(place, known, 0) and not _known(place, known, 4) and _known(place, known, 3)
    assert recorded(None) == {}


def test_the_same_orders_are_found_again(tmp_path: Path) -> None:
    make, setting, _ = SAMPLE[0]
    one, other = (explored(make, setting, tmp_path, eager=True, crashes=False) for _ in range(2))
    assert one == other


# Bugs that are put in, one at a time. Ranks are threads of one process, so each is told by the rank.


def test_a_rank_that_decides_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gathers as all do, and then acts on what it would have answered for everybody."""
    gather = Agreement._gather

    def alone(agreement: Agreement, *arguments: Any) -> list[list[int]]:
        rows = gather(agreement, *arguments)
        return [rows[1]] * len(rows) if agreement._group.rank == 1 else rows

    monkeypatch.setattr(Agreement, "_gather", alone)
    make, setting, _ = SAMPLE[0]
    wrong = rf"rank \d acts on other decisions|rank \d ended with {DisagreementError.__name__}"
    with pytest.raises(ViolationError, match=wrong):
        explored(make, setting, tmp_path, eager=True, crashes=False)


def test_a_transfer_that_nobody_waits_for_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travelled in the background is taken for arrived: true in some orders, and so in most runs."""
    finish = crossing._finish

    def hasty(pending: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Handle, "wait", lambda handle: None)
            finish(pending)

    monkeypatch.setattr(crossing, "_finish", hasty)
    make, setting, _ = SAMPLE[1]
    with pytest.raises(ViolationError, match=f"ended with {DisagreementError.__name__}"):
        explored(make, setting, tmp_path, eager=True, crashes=False)


def test_chunks_in_another_order_on_one_rank_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the agreement before them, what a stage hands on says itself which chunk it is."""
    setting = Setting("a pipeline", 2, 1, EXACT, 2, pipeline=STAGES)
    assert explored(TrainingProgram, setting, tmp_path, eager=True, crashes=False).outcomes.keys() == DONE
    train_epoch = Stage.train_epoch

    def reversed_on_one(stage: Stage, epoch: int, order: Sequence[int]) -> float:
        return train_epoch(stage, epoch, order[::-1] if stage.link.stage == 1 else order)

    monkeypatch.setattr(Stage, "train_epoch", reversed_on_one)
    monkeypatch.setattr("sancus.training.stage.agree_on_order", lambda *_: None)
    with pytest.raises(ViolationError, match=f"error {DisagreementError.__name__}"):
        explored(TrainingProgram, setting, tmp_path, eager=True, crashes=False)


def test_a_rank_that_leaves_out_a_pull_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("mini-batches", 2, 1, EXACT, sampling=BATCHES)
    assert explored(TrainingProgram, setting, tmp_path, eager=True, crashes=False).outcomes.keys() == DONE
    ask = Fetching.ask

    def lazy(fetching: Fetching) -> None:
        store, wanted = fetching._store, len(fetching._nodes)
        if not (store.group.rank and fetching._step.number):
            return ask(fetching)
        for verb in ("pack", "send", "receive"):
            setattr(fetching, verb, lambda: None)
        fetching.unpack = lambda: store.own[:1].expand(wanted, -1)  # type: ignore
        return None

    monkeypatch.setattr(Fetching, "ask", lazy)
    with pytest.raises(ViolationError, match=f"deadlock|error {DisagreementError.__name__}"):
        explored(TrainingProgram, setting, tmp_path, eager=True, crashes=False)


def test_a_branch_around_a_collective_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that got a signal leaves without the gather in which the others would hear of it."""
    reach = Consensus.reach

    def impatient(consensus: Consensus, statement: Statement) -> list[Statement]:
        return [statement] * 2 if statement.signal else reach(consensus, statement)

    monkeypatch.setattr(Consensus, "reach", impatient)
    make, setting, _ = SAMPLE[2]
    wrong = (
        f"deadlock|rank . ended with ({DisagreementError.__name__}|{CommError.__name__})|and others did not"
    )
    with pytest.raises(ViolationError, match=wrong):
        explored(make, setting, tmp_path, eager=True, crashes=False)
