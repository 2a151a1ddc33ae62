"""Mini-batches from the command line: resumed bit for bit, shown, evaluated."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.command import losses, run

GRAPH = "synthetic:nodes=300,features=8,classes=3,degree=6,seed=2"


def test_a_run_in_batches_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Two epochs and two more are the four of one run, and its files say what was drawn."""
    flags = (GRAPH, "--quiet", "--hidden", "8", "--batch-size", "50", "--fanout", "3,2", "--model", "sage")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    runs = [
        run("train", *flags, "--epochs", "4", "--out", whole, launcher="local", ranks=2),
        run("train", *flags, "--epochs", "2", "--out", parts, launcher="local", ranks=2),
        run("train", "--resume", parts, "--epochs", "4", "--quiet", launcher="local", ranks=2),
    ]
    assert [one.code for one in runs] == [0, 0, 0], runs
    assert losses(parts) == losses(whole), "bit for bit"
    record = json.loads((whole / "run.json").read_text())
    steps = record["schedule"]["steps_per_epoch"]
    assert record["config"]["preset"] == "exact" and steps == -(-record["graph"]["train"] // 50) > 1
    lines = [json.loads(line) for line in (parts / "metrics.jsonl").read_text().splitlines()]
    assert [line["steps"] for line in lines] == [steps] * 4
    assert all(0 < line["pulled_rows"] < line["input_rows"] < line["sampled_edges"] * 2 for line in lines)
    assert all(line["wire_bytes"] == line["pulled_rows"] * 8 * 4 for line in lines), "8 features in float32"
    scores = run("evaluate", parts)
    assert scores.code == 0 and "test" in scores.out, scores
    assert run("report", parts).code == 0
    told = run("estimate", GRAPH, "--batch-size", "50", "--ranks", "2", "--spmm", "1e9", "--gemm", "1e9")
    assert told.code == 0 and "2 ranks: a step reads" in told.out, told
