"""`sancus list` and `sancus doctor`: papers, findings and advice; trackers that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sancus.advise import doctor
from sancus.config.kinds import KINDS
from sancus.config.papers import PAPERS
from sancus.config.presets import PRESETS
from sancus.errors import UserError
from sancus.trackers.base import Guarded

TABLES: dict[str, Any] = {name: kind.table for name, kind in KINDS.items()} | {"preset": PRESETS}
OURS = {"exact", "lean", "lean-batch"}


def test_every_paper_belongs_to_something_and_every_preset_to_a_paper() -> None:
    assert all(name in TABLES[kind] for kind, name in PAPERS)
    assert {name for name in PRESETS if ("preset", name) not in PAPERS} == OURS


def test_a_sound_installation() -> None:
    found = {finding.what: finding for finding in doctor.examine(self_test=False)}
    assert all(finding.state != "broken" for finding in found.values()), found
    assert {"packages", "kernel native", "backend gloo", "backend mpi", "threads", "memory", "cache"} <= set(
        found
    )
    assert all(finding.summary for finding in found.values())


def test_what_is_missing_comes_with_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_mpi(*_: object) -> str:
        raise UserError("--backend mpi needs mpi4py; pip install it")

    monkeypatch.setattr(doctor, "choose_backend", no_mpi)
    monkeypatch.setattr(doctor, "_free_memory", lambda: 1e6)
    monkeypatch.setattr(doctor, "PACKAGES", ("torch", "no-such-package"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SANCUS_LIBRARY", str(tmp_path / "none.so"))
    found = {finding.what: finding for finding in doctor.examine(self_test=False)}
    assert (found["packages"].state, found["packages"].advice) == ("broken", "pip install no-such-package")
    assert found["backend mpi"].state == "missing" and "sancus[mpi]" in found["backend mpi"].advice
    assert found["memory"].state == "missing" and "sancus estimate" in found["memory"].advice


class Fails:
    """A tracker that breaks at the second epoch."""

    def __init__(self, directory: Path, config: dict[str, Any]) -> None:
        self.seen = 0

    def epoch(self, record: dict[str, float]) -> None:
        self.seen += 1
        if self.seen > 1:
            raise OSError("disk full")

    def finish(self, run: dict[str, Any]) -> None:
        raise AssertionError("never reached: it was left out")


def test_a_tracker_that_fails_is_left_out_with_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    tracker = Guarded("tests.unit.test_about:Fails", tmp_path, {}, said.append)
    for epoch in range(4):
        tracker.epoch({"epoch": epoch})
    tracker.finish({})
    assert said == ["warning: --track tests.unit.test_about:Fails failed and is left out: OSError: disk full"]


def test_a_tracker_that_cannot_start_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    Guarded("no.such:Tracker", tmp_path, {}, said.append).epoch({"epoch": 0})
    assert len(said) == 1 and "cannot import 'no.such'" in said[0]
