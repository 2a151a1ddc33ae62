"""`--schedule pipeline` from the command line: bytes, files, resuming on other stages, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.runs.layout import chunks_needed, make_schedule, parts_needed
from tests.helpers.command import run
from tests.helpers.processes import TOP

GRAPH = "synthetic:nodes=90,features=8,classes=3,degree=6,seed=2"
NODES, HIDDEN, LAYERS, EPOCHS = 90, 6, 4, 4
FLAGS = (GRAPH, "--preset", "gnnpipe", "--layers", str(LAYERS), "--hidden", str(HIDDEN), "--chunks", "5")
COMMON = (*FLAGS, "--dtype", "float64", "--dropout", "0.3", "--quiet")


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one_also_on_other_stages(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    flags = (*COMMON, "--model", "gcnii", "--history-every", "3")
    begun = [
        run("train", *flags, "--epochs", str(EPOCHS), "--out", whole, launcher="local", ranks=2),
        run("train", *flags, "--epochs", "2", "--out", part, launcher="local", ranks=2),
    ]
    assert [one.code for one in begun] == [0, 0], begun
    for ranks in (2, 4, 1):
        again = tmp_path / f"again-{ranks}"
        shutil.copytree(part, again)
        resumed = run("train", "--resume", again, "--epochs", str(EPOCHS), launcher="local", ranks=ranks)
        assert resumed.code == 0, resumed
        assert "cold" not in resumed.out, resumed
        for line, expected in zip(lines(again), lines(whole), strict=True):
            for figure in ("loss", "train", "val", "test", "chunk_age", "stale_share"):
                assert line[figure] == expected[figure], (ranks, figure, line["epoch"])
        for name in ("weights", "best", "optimizer"):
            files = [folder / "checkpoint" / f"epoch-{EPOCHS:08d}" for folder in (again, whole)]
            one, other = ((folder / f"{name}.safetensors").read_bytes() for folder in files)
            assert one == other, (ranks, name)
    for folder, ranks in ((whole, 1), (whole, 2), (part, 3)):
        scores = run("evaluate", folder, "--ranks", str(ranks))
        assert scores.code == 0 and "test" in scores.out, scores
    _check_bytes(whole, tensors=2)
    _check_timeline(json.loads((whole / "run.json").read_text()), lines(whole))
    shown = run("report", whole)
    page = (whole / "report.html").read_text()
    assert shown.code == 0 and "Stages over time" in page and "boundary bytes" in page, shown


def _check_timeline(record: dict[str, Any], epochs: list[dict[str, Any]], stages: int = 2) -> None:
    """Each (stage, chunk, direction) exactly once, back in the reverse order; means of shares."""
    facts = record["schedule"]
    assert len(facts["timeline"]) == stages and facts["bubble_formula"] == (stages - 1) / (5 + stages - 1)
    for plain in facts["timeline"]:
        begun, ended = plain["begun"], plain["ended"]
        assert all(a <= b for a, b in zip(begun, ended, strict=True)) and begun == sorted(begun)
        assert ended[-1] <= plain["seconds"] + 1e-6
        spans = zip(plain["doing"], plain["backward"], plain["chunk"], strict=True)
        work = [(backward, chunk) for doing, backward, chunk in spans if doing == 1]
        forward, back = ([chunk for way, chunk in work if way == side] for side in (0, 1))
        assert sorted(forward) == list(range(5)) and back == forward[::-1], plain
    for name in ("stale_share", "bubble_share"):
        values = [line[name] for line in epochs]
        assert facts["per_epoch"][name] == pytest.approx(sum(values) / len(values))
        assert all(0 < value < 1 for value in values), values


def _check_bytes(out: Path, tensors: int, stages: int = 2) -> None:
    """2 (S − 1) N f c values an epoch, to the byte, in the lines and in the bill."""
    an_epoch = 2 * (stages - 1) * NODES * HIDDEN * tensors * 8
    assert [line["boundary_bytes"] for line in lines(out)] == [an_epoch] * EPOCHS
    total = json.loads((out / "run.json").read_text())["communication"]["total"]
    assert total["boundary_bytes"] == EPOCHS * an_epoch
    assert total["all_bytes"] == total["boundary_bytes"] + total["agreement_bytes"]


@pytest.mark.slow
def test_a_hybrid_has_plans_policies_and_codecs_inside_and_a_codec_between(tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = (*FLAGS, "--epochs", str(EPOCHS), "--model", "resgcn+", "--stages", "2", "--quiet", "--out", out)
    inside = ("--staleness", "epoch-fixed:bound=1", "--codec", "int4", "--boundary-codec", "int8")
    done = run("train", *flags, *inside, launcher="local", ranks=4)
    assert done.code == 0, done
    record = json.loads((out / "run.json").read_text())
    matrix = record["communication"]["payload_matrix"]
    assert all(not matrix[a][b] for a in range(4) for b in range(4) if a // 2 != b // 2), matrix
    assert record["communication"]["total"]["skips"] > 0
    assert record["schedule"]["ranks_a_stage"] == 2
    an_epoch = 2 * NODES * (HIDDEN + 8)  # a byte a value, zero point and scale a row
    assert [line["boundary_bytes"] for line in lines(out)] == [an_epoch] * EPOCHS


@pytest.mark.slow
def test_the_second_tensor_of_gcnii_need_not_be_handed_on(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    flags = (*COMMON, "--model", "gcnii", "--epochs", str(EPOCHS))
    again = ("--recompute-first", "--recompute", "--balance", "cost")
    done = run("train", *flags, *again, "--out", sent, launcher="local", ranks=2)
    assert done.code == 0, done
    an_epoch = 2 * NODES * HIDDEN * 8
    assert [line["boundary_bytes"] for line in lines(sent)] == [an_epoch] * EPOCHS
    seconds = json.loads((sent / "run.json").read_text())["schedule"]["segment_seconds"]
    assert len(seconds) == LAYERS + 2 and all(value > 0 for value in seconds)


REFUSED = {
    "stages-above-layers": ({"stages": 8}, 8, "--stages 8: the model has 4 graph layers"),
    "stages-that-divide-nothing": ({"stages": 3}, 4, "--stages 3: does not divide the number of ranks, 4"),
    "no-segments": ({"model": f"{TOP}/examples/my_model.py:Net"}, 2, "has no segments"),
    "batch-norm": ({"norm": "batch"}, 2, "--norm batch: its statistics are of all rows"),
    "jumping": ({"jumping": "cat"}, 2, "--jumping cat: the rows of all layers would be handed"),
    "labels": ({"label_rate": 0.5}, 2, "--label-rate: labels are drawn for a pass of all rows"),
    "average": ({"parameters": "average"}, 2, "--parameters average: stages sum gradients"),
    "first": (
        {"recompute_first": True, "model": "resgcn+"},
        2,
        "--recompute-first: no tensor that",
    ),
    "clip": ({"clip": 1.0}, 2, "--clip is of the gradients of all rows"),
    "order": ({"order": "transform-first"}, 2, "--order transform-first: chunks are summed before"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_without_a_meaning_are_refused(name: str) -> None:
    flags, ranks, message = REFUSED[name]
    config = make_config(**{"schedule": "pipeline", "layers": 4} | flags)
    with pytest.raises(UserError, match=message) as refusal:
        parts_needed(config, ranks)
    assert "\n" not in str(refusal.value)


def test_numbers_that_are_none_are_refused() -> None:
    for flags, message in (
        ({"stages": -1}, "--stages -1"),
        ({"chunks": -1}, "--chunks -1"),
        ({"history_every": 0}, "--history-every 0"),
        ({"boundary_codec": "int3"}, "codec 'int3' does not exist"),
        ({"preset": "gnnpipe:0"}, "preset 'gnnpipe:0' does not exist; gnnpipe has gnnpipe, and gnnpipe:1"),
    ):
        with pytest.raises(UserError, match=message):
            make_config(**flags)


def test_a_refusal_comes_before_any_rank_starts() -> None:
    refused = run("train", GRAPH, "--preset", "gnnpipe:8", "--layers", "4", "--ranks", "8")
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused
    assert "the model has 4 graph layers" in refused.err, refused


def test_ranks_of_a_stage_are_neighbours() -> None:
    config = make_config(preset="gnnpipe:3", layers=6)
    assert (parts_needed(config, 6), chunks_needed(config, 6)) == (2, 24)
    layout = make_schedule(config).layout(6)
    assert [tuple(layout.place(rank)) for rank in range(6)] == [(s, 0, w) for s in range(3) for w in range(2)]
    alone = make_config(preset="gnnpipe", layers=6)
    assert make_schedule(alone).layout(3).stages == 3, "one a rank"
