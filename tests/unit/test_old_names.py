"""Plug-ins written for the version before, which name `staleness` and `partitioners` at the top."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sancus.staleness.base
from sancus import plugins
from sancus.partitioners import PARTITIONERS
from sancus.staleness import POLICIES

POLICY = """
from staleness.base import SEND, Replicated, View


class Mine(Replicated):
    max_age = 3

    def decide(self, view):
        import staleness

        assert staleness.POLICIES
        return SEND
"""
PARTITIONER = """
import numpy as np
import partitioners.base
from partitioners.random import Random


class Mine(Random):
    pass
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory of its own, and no module of an old name."""
    monkeypatch.chdir(tmp_path)
    before = dict(sys.modules)
    for name in before:
        if name.partition(".")[0] in plugins.OLD_NAMES:
            monkeypatch.delitem(sys.modules, name)
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in plugins.OLD_NAMES:
            del sys.modules[name]


def test_what_it_imports_is_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICY)
    spec = plugins.parse("policy", POLICIES, "mine.py:Mine")
    module = sys.modules[plugins.load("policy", spec).__module__]
    assert module.SEND is sancus.staleness.base.SEND
    assert sys.modules["staleness.base"] is sancus.staleness.base
    assert module.Mine().decide(None) is sancus.staleness.base.SEND
    assert sancus.staleness.base.__spec__ is not None
    assert sancus.staleness.base.__spec__.name == "sancus.staleness.base"
    (tmp_path / "parts.py").write_text(PARTITIONER)
    made = plugins.build("partitioner", PARTITIONERS, "parts.py:Mine")
    assert isinstance(made, plugins.load("partitioner", plugins.parse("partitioner", PARTITIONERS, "random")))


def test_nobody_else_finds_the_old_names(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    plugins.load("policy", plugins.parse("policy", POLICIES, "mine.py:Mine"))
    assert not [finder for finder in sys.meta_path if isinstance(finder, plugins._OldNames)]


def test_a_module_of_the_users_own_stays_his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "staleness.py").write_text("SEND = 'his own'\n")
    (tmp_path / "mine.py").write_text("from staleness import SEND\n\n\nclass Mine:\n    send = SEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    mine = plugins.load("policy", plugins.parse("policy", POLICIES, "mine.py:Mine"))
    assert mine.send == "his own"  # type: ignore[attr-defined]


def test_settings_are_still_found_where_they_were() -> None:
    from sancus.config import Config
    from sancus.config.settings import Config as Settings

    assert Config is Settings
