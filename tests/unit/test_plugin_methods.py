"""A plug-in that lacks a method is named with it, before any process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from sancus.api import train as train_in_python
from sancus.codecs.full import FullPrecision
from sancus.config.kinds import try_spec
from sancus.errors import UserError
from sancus.runs import build
from sancus.staleness.base import Replicated
from tests.helpers.command import run
from tests.helpers.graphs import awkward_graph


class NoDecide(Replicated):
    """A policy that never answers."""

    max_age = 3


class NoDecode:
    """A codec one way."""

    lossless = True
    wire = FullPrecision.wire
    encode = FullPrecision.encode


class NoAssign:
    """A partitioner that parts nothing."""


class NoForward(nn.Module):
    """A model that computes nothing."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, classes)


class NoAccumulate:
    """A kernel that cannot add."""

    def prepare(self, matrix: Any) -> Any:
        return matrix

    def multiply(self, prepared: Any, dense: Any) -> Any:
        return prepared @ dense


class MadeInTheConstructor(NoDecode):
    """A codec whose `decode` is an attribute of the object."""

    def __init__(self) -> None:
        self.decode = FullPrecision().decode


CASES = {
    "policy": ("staleness", "NoDecide", "decide"),
    "codec": ("codec", "NoDecode", "decode"),
    "partitioner": ("partitioner", "NoAssign", "assign"),
    "model": ("model", "NoForward", "forward"),
    "kernel": ("kernel", "NoAccumulate", "accumulate"),
}


@pytest.mark.parametrize("kind", CASES)
def test_the_command_names_plug_in_and_method(kind: str, tmp_path: Path) -> None:
    flag, name, method = CASES[kind]
    spec = f"{__name__}:{name}"
    words = ("train", "synthetic", "--ranks", "2", "--out", tmp_path / "run", f"--{flag}", spec)
    result = run(*words)
    assert result.code == 2 and result.err.count("\n") == 1, result
    assert f"sancus: {kind} '{spec}' has no method {method}; a {kind} must have" in result.err, result
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", CASES)
def test_python_names_plug_in_and_method(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, name, method = CASES[kind]
    monkeypatch.setattr(build, "connect", lambda *_: pytest.fail("a process group was made"))
    with pytest.raises(UserError, match=f"has no method {method}; a {kind} must have"):
        train_in_python(awkward_graph(), **{flag: f"{__name__}:{name}"})


@pytest.mark.parametrize("made", [False, True], ids=["class", "object"])
def test_a_model_given_to_python_has_a_forward(made: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "connect", lambda *_: pytest.fail("a process group was made"))
    model = NoForward(7, 4, 3) if made else NoForward
    with pytest.raises(UserError, match="model 'NoForward' has no method forward"):
        train_in_python(awkward_graph(), model)


def test_methods_may_be_attributes_of_the_object() -> None:
    try_spec("codec", f"{__name__}:MadeInTheConstructor")
