"""The verbs of the command line as calls, in this process: the same files, the same answers."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sancus
from sancus.cli.runs import list_runs
from sancus.console import notebook, speaker
from sancus.programs.own_ranks import Relay
from tests.helpers.graphs import awkward_graph

DATA = "synthetic:nodes=120,classes=4"
SMALL: dict[str, Any] = {"epochs": 2, "hidden": 4, "quiet": True}


class Net(torch.nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((features, classes), 0.1))

    def forward(self, x: Any, exchange: Any) -> torch.Tensor:
        logits: torch.Tensor = exchange.propagate(x, 0, self.weight)
        return logits


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANCUS_HOME", str(place / "home"))
        yield place


@pytest.fixture(scope="module")
def run(home: Path) -> tuple[Path, sancus.Result]:
    before = signal.getsignal(signal.SIGTERM)
    result = sancus.train(DATA, Net, out=home / "run", **SMALL)
    assert signal.getsignal(signal.SIGTERM) is before
    return home / "run", result


def test_a_run_leaves_its_files_and_no_handlers(run: tuple[Path, sancus.Result]) -> None:
    place, result = run
    assert result.directory == place and (place / "report.html").exists()
    content = json.loads((place / "run.json").read_text())
    assert content["config"]["preset"] == "lean" and content["model"] == {"given": "Net"}
    with np.load(place / "predictions.npz") as arrays:
        np.testing.assert_array_equal(arrays["prediction"], result.predictions)
    assert logging.getLogger("sancus").handlers == []


def test_a_run_without_out_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = home / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    result = sancus.train(awkward_graph(), **SMALL)
    assert result.directory is None and not list(empty.iterdir())


def test_a_run_is_gone_on_with(home: Path) -> None:
    place = home / "resumed"
    first = sancus.train(DATA, out=place, lr=0.1, **SMALL)
    again = sancus.train(DATA, resume=place, epochs=4, quiet=True)
    assert [record["epoch"] for record in [*first.epochs, *again.epochs]] == [0, 1, 2, 3]
    assert json.loads((place / "run.json").read_text())["config"]["training"]["lr"] == 0.1


def test_predictions_need_the_class_of_a_program(run: tuple[Path, sancus.Result]) -> None:
    place, result = run
    with pytest.raises(sancus.UserError, match="trained from Python with Net, which no file names"):
        sancus.predict(place)
    found = sancus.predict(place, model=Net, out=place.with_name("nodes.npz"))
    np.testing.assert_array_equal(found.arrays["logits"], result.logits)
    assert found.scores["test"] == result.test and place.with_name("nodes.npz").exists()


def test_a_model_of_a_file_is_found_from_anywhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = home / "own", home / "elsewhere"
    folder.mkdir()
    other.mkdir()
    (folder / "mine.py").write_text(
        "import torch\n\n\nclass Mine(torch.nn.Linear):\n"
        "    def __init__(self, features, hidden, classes):\n        super().__init__(features, classes)\n\n"
        "    def forward(self, x, exchange):\n        return exchange.propagate(super().forward(x), 0)\n"
    )
    monkeypatch.chdir(folder)
    result = sancus.train(DATA, "mine.py:Mine", out=home / "of-a-file", **SMALL)
    monkeypatch.chdir(other)
    np.testing.assert_array_equal(sancus.predict(home / "of-a-file").arrays["logits"], result.logits)


def test_the_other_verbs(home: Path) -> None:
    facts = sancus.partition(awkward_graph(), 2, home / "parts", quiet=True)
    assert facts["partitioner"] == "metis" and (home / "parts/manifest.json").exists()
    two, three = sancus.estimate(DATA, [2, 3], hidden=4, spmm=1e9, gemm=1e9)
    assert (two.ranks, three.ranks) == (2, 3)
    told = sancus.info(awkward_graph())
    assert "nodes" in repr(told) and told.rows


def test_runs_are_listed(run: tuple[Path, sancus.Result], capsys: pytest.CaptureFixture[str]) -> None:
    place, result = run
    broken = place.parent / "listed/broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    early = place.parent / "listed/early"
    early.mkdir()
    content = json.loads((place / "run.json").read_text())
    (early / "run.json").write_text(json.dumps({**content, "result": None}))
    facts = {one["directory"]: one for one in sancus.list_runs(place.parent)}
    assert facts[place]["test"] == result.test and facts[place]["model"] == "Net" and facts[place]["finished"]
    assert not facts[early]["finished"] and facts[broken]["graph"] is None
    list_runs(place.parent)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert f"{result.test:.4f} accuracy" in lines[str(place)]
    assert "unfinished" in lines[str(early)] and "damaged" in lines[str(broken)]
    empty = place.parent / "no-runs"
    empty.mkdir()
    with pytest.raises(sancus.UserError, match="no-runs holds no run"):
        list_runs(empty)


def test_a_comparison_and_its_page(home: Path) -> None:
    place = home / "compared"
    rows = sancus.compare(DATA, ["exact", "lean"], out=place, **SMALL)
    assert [row["preset"] for row in rows] == ["exact", "lean"] and (place / "compare.json").exists()
    (place / "report.html").unlink()
    place.rename(home / "moved")
    assert sancus.write_report(home / "moved") == home / "moved/report.html"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: sancus.train(DATA, ranks=2.5), "ranks=2.5 is a float; it must be a whole number"),
        (lambda: sancus.partition(DATA, 0, "x"), "parts=0: must be at least 1"),
        (lambda: sancus.compare(DATA, "lean", out="x"), "presets='lean' is one text; give a list"),
        (lambda: sancus.estimate(DATA, "2"), "ranks='2' is a str; it must be a whole number"),
        (lambda: sancus.predict("nowhere"), "nowhere holds no finished run"),
        (lambda: sancus.write_report(), "RUN_DIR is missing"),
    ],
)
def test_mistakes(call: Any, said: str, home: Path) -> None:
    with pytest.raises(sancus.UserError) as caught:
        call()
    assert said in str(caught.value)


def test_a_last_line_of_ours_is_kept_for_the_exception(tmp_path: Path) -> None:
    read, write = os.pipe()
    shown = io.StringIO()
    relay = Relay(read, shown, "sancus: ")
    os.write(
        write, b"Traceback\nValueError: boom\nsancus: rank 1: failed with the error above\nsancus: rank 1 "
    )
    assert relay.read() and not relay.read()
    os.write(write, b"failed with exit code 1; all ranks were ended\n")
    assert relay.read()
    line = relay.held_back.removeprefix("sancus: ").strip()
    expected = "rank 1: ValueError: boom (its traceback is above); all ranks were ended"
    assert relay.blame(line) == expected
    assert shown.getvalue() == "Traceback\nValueError: boom\n"
    os.close(write)
    assert not relay.read() and relay.ended
    os.close(read)


def test_a_notebook_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr(notebook.Notebook, "_show", lambda self, html, text: shown.append({html: text}))
    monkeypatch.setattr(speaker, "in_notebook", lambda: True)
    say = speaker.speaker()
    say.step("loading <a>")
    say.epoch({"epoch": 0, "loss": 1.0}, 2)
    assert "loading &lt;a&gt;" in next(iter(shown[0])) and '<progress value="1" max="2"' in next(
        iter(shown[1])
    )
    assert isinstance(speaker.speaker(quiet=True), speaker.Silent)
