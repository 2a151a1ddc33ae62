"""What a speaker says, and when; colours that everyone can tell apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sancus.console import speaker as progress

CSS = (Path(__file__).parents[2] / "sancus/report/page.css").read_text()
RECORD: dict[str, float | int | None] = {
    "epoch": 4,
    "loss": 0.5,
    "val": 0.25,
    "test": None,
    "wire_bytes": 1_200_000,
    "sends": 3,
    "skips": 1,
    "max_age": 2,
    "seconds": 0.06,
    "compute_seconds": 0.03,
    "comm_seconds": 0.03,
    "waiting_seconds": 0.01,
}


def test_an_epoch_in_words() -> None:
    assert progress.figures(RECORD) == [
        "loss 0.5000",
        "val 0.2500",
        "test undefined",
        "1.2 MB",
        "skipped 25 %",
        "age 2",
        "60.0 ms: compute 30.0 ms | comm 20.0 ms | wait 10.0 ms",
    ]


def test_plain_lines_are_few_unless_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    for verbose, count in ((False, 20), (True, 100)):
        speaker = progress.Plain(verbose=verbose)
        for epoch in range(100):
            speaker.epoch(RECORD | {"epoch": epoch}, 100)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == count and lines[-1].startswith("epoch 100/100")


def test_passing_steps_are_told_after_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    speaker = progress.Plain()
    speaker.step("writing shards")
    speaker.step("shard 1", passing=True)
    now = 11.0
    speaker.step("shard 2", passing=True)
    speaker.step("shard 3", passing=True)
    assert capsys.readouterr().out == "writing shards\nshard 2\n"


def test_a_long_run_is_heard_of_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By share of the epochs, and where nothing was said for a while."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    speaker = progress.Plain()
    for epoch in range(25):
        now += 1.0
        speaker.epoch({"epoch": epoch, "loss": 1.0}, 100_000)
    numbers = [line.split("/")[0].split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert numbers == ["11", "22"]


def test_time_left_follows_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    pace = progress.Pace()
    assert pace.remaining({"epoch": 10}, 31) == ""
    now = 120.0
    assert pace.remaining({"epoch": 20}, 31) == "20.0 s"
    assert pace.remaining({"epoch": 30}, 31) == ""


def test_quiet_and_no_terminal() -> None:
    assert progress.speaker(quiet=True) is progress.SILENT
    assert isinstance(progress.speaker(), progress.Plain)


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2])
def test_colours_of_the_page_can_be_seen(theme: int) -> None:
    """Light, dark by the switch, dark by the reader's setting: text 4.5:1, marks 3:1 (WCAG)."""
    block = re.findall(r"\{ color-scheme: .*?\}", CSS, re.S)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))
    colours = {n: f"#{c[1] * 2}{c[2] * 2}{c[3] * 2}" if len(c) == 4 else c for n, c in colours.items()}
    for ground in ("ground", "card"):
        for text in ("ink", "quiet"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for place in range(8):
            assert contrast(colours[f"s{place}"], colours[ground]) >= 3.0, (place, ground)
    assert contrast(colours["send"], colours["age-low"]) >= 3.0, "a SEND beside a young SKIP"


def test_both_ways_to_darkness_are_the_same() -> None:
    _, switched, preferred = re.findall(r"\{ color-scheme: (.*?)\}", CSS, re.S)
    assert switched.split() == preferred.split()
