"""Schedules and layouts: `full`, and one that only tests have, keep the law through the same seams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from sancus.runs.build import make_trainer
from sancus.runs.layout import make_schedule, parts_needed
from sancus.shards.cache import prepare
from tests.helpers.command import losses, run
from tests.helpers.processes import run_ranks

GRAPH = "synthetic:nodes=120,features=8,classes=3,degree=6,seed=2"
TWO_COPIES = "tests.helpers.toy_schedules:TwoCopies"
THIRDS = "tests.helpers.toy_schedules:Thirds:shares=4"
EPOCHS = 3


def config(model: str, **flags: Any) -> Config:
    shape = {
        "layers": 3,
        "hidden": 6,
        "heads": 2,
        "dropout": 0.4,
        "norm": "batch" if model == "gcn" else "none",
    }
    return make_config(model=model, dtype="float64", optimizer="sgd", lr=0.2, epochs=EPOCHS, **shape, **flags)


def train(group: Group, folder: str, model: str, flags: dict[str, Any]) -> dict[str, Any]:
    """On one rank: losses, last gradients and weights, and the records of the run."""
    settings = config(model, **flags)
    place = make_schedule(settings).layout(group.size).place(group.rank)
    trainer = make_trainer(settings, open_shard(Path(folder), place.part), group, torch.device("cpu"))
    records = list(trainer.epochs())
    gradients = {name: p.grad for name, p in trainer.model.named_parameters()}
    return {"records": records, "gradients": gradients, "weights": trainer.model.state_dict()}


@pytest.mark.parametrize("backend", ["gloo", pytest.param("mpi", marks=pytest.mark.mpi)])
@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_two_copies_of_two_parts_equal_one_process(
    backend: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    alone = train(Group(Alone()), str(prepare(GRAPH, "random", 1).directory), model, {})
    folder = str(prepare(GRAPH, "random", 2).directory)
    arguments = {"folder": folder, "model": model, "flags": {"schedule": TWO_COPIES}}
    for rank in run_ranks("tests.ranks.test_schedules:train", 4, backend=backend, **arguments):
        for record, expected in zip(rank["records"], alone["records"], strict=True):
            for figure in ("loss", "train", "val", "test"):
                assert record[figure] == pytest.approx(expected[figure], rel=1e-12), figure
        for kind in ("gradients", "weights"):
            for name, tensor in alone[kind].items():
                torch.testing.assert_close(rank[kind][name], tensor, rtol=1e-10, atol=1e-13)


def test_a_schedule_of_ones_own_is_a_flag(tmp_path: Path) -> None:
    flags = (GRAPH, "--dtype", "float64", "--epochs", "3", "--preset", "exact", "--quiet", "--hidden", "8")
    alone = run("train", *flags, "--out", tmp_path / "full", launcher="local", ranks=2)
    copies = run(
        "train", *flags, "--schedule", TWO_COPIES, "--out", tmp_path / "two", launcher="local", ranks=4
    )
    assert (alone.code, copies.code) == (0, 0), f"{alone}\n{copies}"
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "full"), rel=1e-9)
    settings = json.loads((tmp_path / "two" / "run.json").read_text())["config"]
    assert settings["training"]["schedule"] == TWO_COPIES
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert len(set(record["cache"]["predicted_bytes"][::2])) == 1, "copies hold the same"
    matrix = record["communication"]["payload_matrix"]
    assert all(not matrix[a][b] for a in range(4) for b in range(4) if a // 2 != b // 2), matrix
    assert matrix[2][3] == matrix[0][1] > 0
    for ranks in (1, 2):
        scores = run("evaluate", tmp_path / "two", "--ranks", str(ranks))
        assert scores.code == 0 and "test" in scores.out, scores
    odd = run("train", *flags, "--schedule", TWO_COPIES, launcher="local", ranks=3)
    assert odd.code == 2 and "need an even number of ranks" in odd.err, odd


def test_a_schedule_prepares_remembers_measures_and_describes(tmp_path: Path) -> None:
    flags = (GRAPH, "--dtype", "float64", "--preset", "exact", "--quiet", "--hidden", "8", "--lr", "0.05")
    full, thirds = tmp_path / "full", tmp_path / "thirds"
    runs = [
        run("train", *flags, "--epochs", "4", "--out", full, launcher="local", ranks=2),
        run(
            "train", *flags, "--epochs", "2", "--out", thirds, "--schedule", THIRDS, launcher="local", ranks=2
        ),
        run("train", "--resume", thirds, "--epochs", "4", "--quiet", launcher="local", ranks=2),
    ]
    assert [one.code for one in runs] == [0, 0, 0], runs
    assert losses(thirds) == pytest.approx(losses(full), rel=1e-12)
    lines = [json.loads(line) for line in (thirds / "metrics.jsonl").read_text().splitlines()]
    assert [line["toy_shares"] for line in lines] == [2 * 4] * 4, "four shares on each of two ranks"
    told = json.loads((thirds / "run.json").read_text())["schedule"]
    assert told == {"epochs": 4, "lr": 0.05, "per_epoch": {"toy_shares": 8.0}}
    assert json.loads((full / "run.json").read_text())["schedule"] == {}
    assert "toy_shares" not in json.loads((full / "metrics.jsonl").read_text().splitlines()[0])
    shown = run("report", thirds)
    assert shown.code == 0, shown


def test_a_schedule_that_is_none_is_refused_before_a_rank_starts() -> None:
    refused = run("train", GRAPH, "--schedule", "tests.helpers.toy_schedules:NoSchedule", "--ranks", "2")
    assert refused.code == 2 and "has no method prepare" in refused.err, refused


def test_labels_as_input_need_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path))
    folder = str(prepare(GRAPH, "random", 1).directory)
    with pytest.raises(UserError, match="--label-rate needs all rows in one step"):
        train(Group(Alone()), folder, "gcn", {"schedule": THIRDS, "label_rate": 0.5})


def test_the_layout_says_how_many_parts_are_cut() -> None:
    assert parts_needed(make_config(), 6) == 6
    assert parts_needed(make_config(schedule=TWO_COPIES), 6) == 3
    with pytest.raises(UserError, match="need an even number"):
        parts_needed(make_config(schedule=TWO_COPIES), 5)


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(UserError, match="schedule 'fll' does not exist; choose from async, full"):
        make_config(schedule="fll")
