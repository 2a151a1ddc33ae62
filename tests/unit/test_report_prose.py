"""The page in words: its first paragraph, its terms, and who is called best."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from sancus.report.groups import RunGroup, group_runs
from sancus.report.prose import TERMS, best_score, explained, opening
from sancus.report.run_reader import read
from tests.unit.test_report import RUN, save

NOBODY = "No score is best: a, b are within a deviation of each other."
ONE_SEED = "With one seed each, scores are 80.00 % to 90.00 %: that shows no order."


def groups_of(folder: Path, scores: dict[str, list[float]]) -> list[RunGroup]:
    """A group a preset, a run a score."""
    paths = []
    for preset, values in scores.items():
        for seed, score in enumerate(values):
            run = copy.deepcopy(RUN)
            run["config"] = {"model": "gcn", "preset": preset, "training": {"seed": seed}}
            run["result"]["test"] = score
            paths.append(folder / f"{preset}-{seed}")
            paths[-1].mkdir()
            save(paths[-1], run)
    return list(group_runs([read(path) for path in paths]))


def test_one_run_is_told_in_sentences(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, {"lean": [0.8134]})
    text = opening([groups[0].first], groups)
    assert "4 ranks trained for 30 epochs under preset lean. 3.4 MB crossed between them in an epoch" in text
    assert "Test accuracy is 81.34 %" in text and "An epoch took 60.0 ms." in text


def test_many_runs_are_told_in_sentences(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, {"cagnet": [0.80, 0.81], "lean": [0.70, 0.71]})
    text = opening([group.first for group in groups], groups)
    assert "2 settings, held against cagnet, which sends 3.4 MB in an epoch." in text
    assert "cagnet scores best with 80.50 %." in text


@pytest.mark.parametrize(
    "scores, said",
    [
        (
            {"a": [0.80, 0.82], "b": [0.80, 0.81]},
            NOBODY,
        ),
        ({"a": [0.90, 0.91], "b": [0.80, 0.81]}, "a scores best with 90.50 %."),
        (
            {"a": [0.80, 0.81], "b": [0.60, 0.98]},
            NOBODY,
        ),
        (
            {"a": [0.90], "b": [0.80]},
            ONE_SEED,
        ),
    ],
)
def test_nobody_is_best_inside_a_deviation(scores: dict[str, list[float]], said: str, tmp_path: Path) -> None:
    assert best_score(groups_of(tmp_path, scores)) == said


def test_terms_are_explained_once_and_text_stays_text() -> None:
    text = explained("An owner's <b>history</b>; owners of histories, SKIPs.")
    assert text.count('<abbr title="') == 3 and "&lt;b&gt;" in text and "<b>" not in text
    assert f'title="{TERMS["owner"]}"' in text and text.count(TERMS["owner"]) == 1
