"""Link prediction from the command line: resumed bit for bit, evaluated, predicted, shown."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.helpers.command import losses, run

GRAPH = "synthetic:nodes=200,features=6,classes=3,degree=6,seed=2"


def test_a_run_of_links_is_resumed_and_evaluated(tmp_path: Path) -> None:
    flags = (GRAPH, "--quiet", "--hidden", "8", "--task", "link", "--batch-size", "200", "--fanout", "3,2")
    whole, parts, table = tmp_path / "whole", tmp_path / "parts", tmp_path / "rows.csv"
    runs = [
        run("train", *flags, "--epochs", "2", "--out", whole, launcher="local", ranks=2),
        run("train", *flags, "--epochs", "1", "--out", parts, launcher="local", ranks=2),
        run("train", "--resume", parts, "--epochs", "2", "--quiet", launcher="local", ranks=2),
    ]
    assert [one.code for one in runs] == [0, 0, 0], runs
    assert losses(parts) == losses(whole), "bit for bit"
    record = json.loads((whole / "run.json").read_text())
    assert record["result"]["metric"] == "ROC-AUC" and record["schedule"]["training_edges"] > 200
    scores = run("evaluate", whole)
    assert scores.code == 0 and f"test {record['result']['test']:.4f}" in scores.out, scores
    assert run("predict", whole, "--out", table).code == 0
    rows = list(csv.reader(table.open()))
    assert rows[0] == ["node", *(f"value_{place}" for place in range(8))] and len(rows) == 201
    assert run("report", whole).code == 0
    refused = run("estimate", GRAPH, "--ranks", "2", "--task", "link")
    assert refused.code == 2 and "--task link: only node classification is predicted" in refused.err
