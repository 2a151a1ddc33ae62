"""Files of runs that were damaged: told in one line, or left out; never a traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.report.comparison import comparison_rows
from sancus.report.page import write_report
from sancus.report.run_reader import number
from sancus.report.summary import bill, breakdown, result
from sancus.runs.compare import Comparison, run_all
from tests.faults.sessions import GRAPH, train
from tests.helpers.command import run
from tests.unit.test_report import METRICS, RUN, write

HUGE = {
    "1e308": 1e308,
    "-1e308": -1e308,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "1e-320": 1e-320,
    "1e30": 1e30,
    "-1": -1,
    "0": 0,
}
DAMAGE = {
    "binary": b"\xff\xfe\x00garbage\x80\n",
    "a list": b"[1, 2]\n",
    "no epoch": b'{"loss": 1}\n',
    "an epoch that is text": b'{"epoch": "seven"}\n',
    "an infinite epoch": b'{"epoch": Infinity}\n',
    "a huge epoch": b'{"epoch": 1' + b"0" * 400 + b"}\n",
    "a deep one": b"[" * 100_000 + b"\n",
    "zeros": bytes(5000) + b"\n",
}


def leaves(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the numbers of nested dictionaries and lists are."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(value, (*place, key))
    elif isinstance(content, int | float):
        yield place


def changed(content: Any, places: Sequence[tuple[Any, ...]], value: Any) -> Any:
    """A copy with another value at some places."""
    copy = json.loads(json.dumps(content))
    for *way, last in places:
        inner = copy
        for key in way:
            inner = inner[key]
        inner[last] = value
    return copy


def test_the_reader_takes_only_numbers_that_can_be_reckoned_with() -> None:
    assert [number(value) for value in (1e308, 10**400, math.inf, math.nan, True, "1", None)] == [None] * 7
    assert [number(value) for value in (0, 2, -1.5, 10**20, 1e-320)] == [0, 2, -1.5, 10**20, 0.0]


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_one_huge_number_anywhere_in_run_json(value: float) -> None:
    """What the terminal and the page say in words."""
    for place in leaves(RUN):
        damaged = changed(RUN, [place], value)
        assert all(isinstance(text, str) for row in (*result(damaged), *bill(damaged)) for text in row)
        breakdown(damaged)


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_a_report_on_huge_numbers(tmp_path: Path, value: float) -> None:
    """In every section of `run.json`, in every figure of an epoch; one after the other, and all at once."""
    places = list(leaves(RUN))
    for section in (*RUN, None):
        own = [place for place in places if section in (None, place[0])]
        if own:
            write(tmp_path, changed(RUN, own, value))
    lines = [json.loads(line) for line in METRICS.splitlines()]
    for name in lines[0]:
        damaged = [*lines[:3], lines[3] | {name: value}, *lines[4:]]
        write(tmp_path, RUN, "".join(json.dumps(line) + "\n" for line in damaged))
    everything = [dict.fromkeys(line, value) | {"epoch": line["epoch"]} for line in lines]
    page = write(
        tmp_path, changed(RUN, places, value), "".join(json.dumps(line) + "\n" for line in everything)
    )
    assert "Infinity" not in json.dumps(page.charts()) and "NaN" not in json.dumps(page.charts())


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_report_on_damaged_metrics(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(damage + METRICS.encode() + damage)
    assert "not a complete record" in write_report(tmp_path).read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train(Group(Alone()), GRAPH, "--hidden", "4", "--epochs", "4", "--threads", "1", "--out", out)
    return out


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_run_with_damaged_metrics_goes_on(
    finished: Path, tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    first, *others = (finished / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    source.mkdir()
    (source / "checkpoint").symlink_to(finished / "checkpoint")
    (source / "metrics.jsonl").write_bytes(b"".join([first, damage, *others]))
    words = (GRAPH, "--hidden", "4", "--threads", "1", "--epochs", "6", "--resume", source, "--out", out)
    train(Group(Alone()), *words)
    epochs = [json.loads(line)["epoch"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(6))
    told = "sancus: metrics.jsonl: 1 damaged line is left out\n" in capsys.readouterr().err
    assert told is (damage is not DAMAGE["a huge epoch"]), "that is the line of a later epoch"


def test_metrics_that_are_a_folder(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "run.json").write_bytes((finished / "run.json").read_bytes())
    assert "metrics.jsonl cannot be read" in write_report(tmp_path).read_text()


def compare_over(out: Path, finished: Path, metrics: bytes, run_json: bytes) -> list[dict[str, Any]]:
    """A comparison whose runs leave these files."""

    comparison = Comparison(GRAPH, ["exact"], 1, out, ())

    def leave(preset: str, seed: int) -> int:
        place = comparison.directory(preset, seed)
        place.mkdir(parents=True)
        (place / "metrics.jsonl").write_bytes(metrics)
        (place / "run.json").write_bytes(run_json)
        return 0

    return run_all(comparison, leave, lambda line: None)


def test_a_comparison_over_damaged_files_is_one_line(finished: Path, tmp_path: Path) -> None:
    metrics, run_json = ((finished / name).read_bytes() for name in ("metrics.jsonl", "run.json"))
    assert comparison_rows(compare_over(tmp_path / "whole", finished, metrics, run_json))[1][0] == "exact"
    cases = [(damage + metrics, run_json) for damage in DAMAGE.values()]
    cases += [(b"", run_json), (metrics, b"{"), (metrics, b"[]"), (metrics, b'{"result": {}}')]
    for place, (lines, run_text) in enumerate(cases):
        with pytest.raises(UserError, match="is damaged") as caught:
            compare_over(tmp_path / str(place), finished, lines, run_text)
        assert "\n" not in str(caught.value)


def test_commands_on_a_damaged_run_say_one_line(finished: Path, tmp_path: Path) -> None:
    """`report` shows the rest; a run is no graph to `data info`."""
    for name in ("run.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(DAMAGE.values()))
    shown = run("report", tmp_path)
    assert shown.code == 0 and not shown.err, shown
    info = run("data", "info", tmp_path)
    assert info.code == 2 and info.err.count("\n") == 1 and info.err.startswith("sancus: "), info
