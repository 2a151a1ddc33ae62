"""The protocol between ranks in every order of things: a sample of `make protocol`, and bugs it finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.handle import Handle
from sancus.exchange import crossing
from sancus.exchange.agreement import Agreement
from sancus.training.consensus import Consensus, Statement
from tests.protocol.explorer import ViolationError
from tests.protocol.play import Program
from tests.protocol.programs import Ground, Setting
from tests.protocol.settings import SAMPLE, explore_setting

GROUND = Ground()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def explored(make: Callable[..., Program], setting: Setting, folder: Path, **how: bool) -> Any:
    return explore_setting(make, setting, GROUND, folder, **how).count


@pytest.mark.parametrize(("make", "setting", "how"), SAMPLE, ids=lambda given: getattr(given, "name", ""))
def test_every_order_of_things_ends_well(
    make: Callable[..., Program], setting: Setting, how: dict[str, bool], tmp_path: Path
) -> None:
    count = explored(make, setting, tmp_path, **how)
    assert count.states > 50 and count.outcomes["done done"] >= 1
    assert (count.crashes > 0) == how["crashes"]
    assert ("crashed error" in count.outcomes) == how["crashes"]


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
