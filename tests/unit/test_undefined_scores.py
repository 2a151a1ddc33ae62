"""ROC-AUC without a positive label: undefined everywhere, not 0."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from torch import nn

from sancus.api import train
from sancus.console.speaker import figures
from sancus.datasets.npz import save_npz
from sancus.graphs.graph import Graph
from sancus.report.comparison import comparison_rows
from sancus.report.seconds import PARTS
from sancus.runs.compare import Spread
from sancus.training.evaluation import Best
from tests.helpers.command import metrics, read_run, run
from tests.helpers.graphs import awkward_graph

FLAGS = ("--metric", "roc-auc", "--epochs", "3", "--hidden", "4", "--ranks", "1")


def one_sided(*splits: str) -> Graph:
    """Two labels a node; in these splits no node has any of them."""
    graph = awkward_graph(multilabel=True)
    labels = graph.labels.copy()
    for split in splits:
        labels[getattr(graph, f"{split}_mask")] = False
    return dataclasses.replace(graph, labels=labels)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    save_npz(one_sided("val", "test"), tmp_path / "graph.npz")
    return tmp_path / "graph.npz"


def test_files_and_words_say_undefined(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = run("train", data, *FLAGS, "--out", out)
    assert result.code == 0, result
    assert "test ROC-AUC undefined at the best validation epoch (3 of 3, val undefined)" in result.out
    assert "test 0.0000" not in result.out, result
    strict = json.loads((out / "run.json").read_text(), parse_constant=pytest.fail)["result"]
    assert strict["val"] is None and strict["test"] is None and strict["best_epoch"] == 2
    for epoch in metrics(out):
        assert epoch["val"] is None and epoch["test"] is None and 0 <= epoch["train"] <= 1
    result = run("evaluate", out)
    assert "val undefined  test undefined" in result.out, result
    result = run("report", out)
    assert result.code == 0 and "undefined" in (out / "report.html").read_text(), result
    again = run("train", data, "--resume", out, "--epochs", "4")
    assert again.code == 0 and read_run(out)["result"]["best_epoch"] == 3, again


def test_python_says_nan() -> None:
    result = train(one_sided("val"), metric="roc-auc", epochs=2, hidden=4)
    assert math.isnan(result.val) and 0 <= result.test <= 1


def test_the_last_epoch_is_the_best_where_no_score_is_defined() -> None:
    model = nn.Linear(1, 1)
    best = Best().better(0, None, 0.4, model).better(1, None, 0.3, model)
    assert (best.epoch, best.val, best.test) == (1, None, 0.3)
    known = best.better(2, 0.0, None, model)
    assert (known.epoch, known.val) == (2, 0.0), "any score is better than none"
    assert known.better(3, None, 0.9, model) is known


def test_a_comparison_leaves_undefined_scores_out() -> None:
    assert Spread.of([0.5, None, 0.7]).mean == pytest.approx(0.6)
    assert Spread.of([None]) == Spread(None, None)
    keys = ("test", "all_bytes", "wire_bytes", "seconds", "max_age", "history_bytes")
    zero = {"mean": 0.0, "deviation": 0.0}
    parts = [name for name in comparison_rows([])[0] if name]
    row = dict.fromkeys((*keys, *PARTS), zero) | {"test": {"mean": None, "deviation": None}}
    row |= dict.fromkeys(("all_ratio", "wire_ratio", "codec_error", "epochs_to_target", "seconds_to_target"))
    line = comparison_rows([{"preset": "exact", "directories": ["one"]} | row])[1]
    assert line[parts.index("test")] == "undefined"


def test_progress_says_undefined_only_where_it_was_evaluated() -> None:
    seen = figures({"loss": 0.5, "train": 0.5, "val": None, "test": 0.25})
    assert "val undefined" in seen and "test 0.2500" in seen
    assert not [word for word in figures({"loss": 0.5, "train": None}) if "undefined" in word]
