"""The histograms of a run whose ranks waited for nobody; of whatever a file says in their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sancus.report.charts.merges import counts_of, merge_charts
from sancus.report.groups import group_runs
from sancus.report.page import render
from sancus.report.run_reader import read


def charts(folder: Path, schedule: Any) -> list[Any]:
    (folder / "run.json").write_text(json.dumps({"schedule": schedule}))
    return merge_charts(group_runs([read(folder)])[0])


def test_delays_and_ages_are_drawn(tmp_path: Path) -> None:
    schedule = {
        "weight_delays": [[0, 2], [1, 6]],
        "history_ages": [[3, 4], [10, 1]],
        "steps_per_second": [20.0, 2.0],
    }
    delays, ages = charts(tmp_path, schedule)
    assert delays.traces[0]["x"] == [0, 1] and delays.traces[0]["y"] == [2, 6]
    assert "25" in delays.summary and "20" in delays.summary
    assert ages.columns == {"age, steps of the owner": [3, 10], "uses": [4, 1]}
    assert "At most 10 steps" in ages.summary
    assert "Delay of weights" in render([read(tmp_path)])


@pytest.mark.parametrize(
    "damage", [None, 3, "many", {"weight_delays": 5}, {"weight_delays": [[1], ["a", 2], 7]}]
)
def test_what_is_no_histogram_is_left_out(tmp_path: Path, damage: Any) -> None:
    assert charts(tmp_path, damage) == []


def test_counts_are_sorted() -> None:
    assert counts_of([[5, 1], [2, 3], [4, 0]]) == {2: 3, 5: 1}
