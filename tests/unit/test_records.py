"""What rank 0 does for all ranks: its result stays with it, its mistake is everybody's."""

from __future__ import annotations

import pytest

from sancus.comm.group import Group
from sancus.comm.records import on_rank_zero
from sancus.errors import UserError
from tests.helpers.threads import CPU, results, run_threads


def test_only_rank_0_acts_and_has_the_result() -> None:
    acted = []

    def run(group: Group) -> int | None:
        return on_rank_zero(group, lambda: acted.append(group.rank) or 7, CPU)

    assert results(run_threads(3, run)) == [7, None, None]
    assert acted == [0]


def test_a_mistake_that_rank_0_sees_is_raised_on_all_ranks() -> None:
    def run(group: Group) -> str:
        def refuse() -> None:
            raise UserError("the disk is full")

        with pytest.raises(UserError) as caught:
            on_rank_zero(group, refuse, CPU)
        return str(caught.value)

    assert results(run_threads(2, run)) == ["the disk is full"] * 2
