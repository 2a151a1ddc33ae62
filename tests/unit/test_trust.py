"""Code that a stranger's run names is not run: not imported even, until its user says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sancus.cli.runs import evaluate, predict
from sancus.cli.train import read_flags
from sancus.config.kinds import KINDS
from sancus.config.trust import check_trust, note_choice, own_code
from sancus.datasets.open import open_graph
from sancus.errors import UserError
from tests.helpers.checkpoints import write_settings

FLAGS = [flag for kind in KINDS.values() if kind.own for flag in kind.flags]
RAN = "from pathlib import Path\nPath('ran').touch()\n"
CODE = RAN + "class Thing:\n    pass\nclass Other:\n    pass\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with code in it, and a cache in which nothing was chosen."""
    monkeypatch.setenv("SANCUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # plug-ins are looked for in the working directory
    (tmp_path / "strange.py").write_text(CODE)
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "__init__.py").write_text("")
    (tmp_path / "box" / "strange.py").write_text(CODE)
    return tmp_path


def write_run(settings: dict[str, Any]) -> list[list[str]]:
    """A finished run of a stranger's in `run`; the flags by which it is repeated, or gone on with."""
    write_settings(Path("run"), settings)
    Path("run/run.json").write_text(json.dumps({"config": settings}))
    return [["--config", "run/run.json"], ["--resume", "run"]]


# Flags that only go with others.
BESIDE: dict[str, dict[str, Any]] = {
    "boundary_codec": {"schedule": "pipeline"},
    **{flag: {"batch_size": 4} for flag in ("sampler", "feature_codec", "feature_cache")},
}
CASES = [("model", "box.strange:Thing"), *((flag, "strange.py:Thing") for flag in (*FLAGS, "data"))]


@pytest.mark.parametrize(("flag", "target"), CASES)
def test_code_that_a_run_names_is_asked_for(flag: str, target: str) -> None:
    for arguments in write_run({flag: target} | BESIDE.get(flag, {})):
        with pytest.raises(UserError) as error:
            read_flags(arguments)
        line = f"{' '.join(arguments)} names code that is not part of Sancus: {flag} {target}; "
        assert str(error.value) == f"{line}look at it, and add --trust to run it"
        read_flags([*arguments, "--trust"])
        typed = ["synthetic"] if flag == "data" else [f"--{flag.replace('_', '-')}", "strange.py:Other"]
        read_flags([*typed, *arguments])  # what was typed is the user's own choice
    assert not Path("ran").exists()


def test_trust_can_be_refused() -> None:
    for arguments in write_run({"model": "strange.py:Thing"}):
        with pytest.raises(UserError, match="add --trust"):
            read_flags([*arguments, "--no-trust"])


@pytest.mark.parametrize("said", [{"trust": True}, {"trust": "true"}], ids=["flag", "text"])
def test_a_file_cannot_trust_itself(said: dict[str, Any]) -> None:
    for arguments in write_run({"model": "strange.py:Thing"} | said):
        with pytest.raises(UserError, match="add --trust"):
            read_flags(arguments)


def test_what_is_no_text_in_a_file_is_asked_for_as_the_text_that_is_made_of_it() -> None:
    """Python code may have any name: here it begins with a bracket."""
    Path("['strange.py").write_text(CODE)
    for arguments in write_run({"model": ["strange.py:Thing"]}):
        with pytest.raises(UserError, match="names code that is not part of Sancus: model "):
            read_flags(arguments)
    assert not Path("ran").exists()


def test_what_uses_a_finished_run_asks_too() -> None:
    write_run({"model": "strange.py:Thing"})
    for verb in (lambda: evaluate(Path("run")), lambda: predict(Path("run"), out=Path("out.npz"))):
        with pytest.raises(UserError, match=r"model strange\.py:Thing; look at it, and add --trust"):
            verb()
    assert not Path("ran").exists()
    with pytest.raises(UserError, match=r"model 'strange\.py:Thing' has no method forward"):
        evaluate(Path("run"), trust=True)
    assert Path("ran").exists()


def test_our_own_plugins_are_not_asked_for() -> None:
    for kind in KINDS.values():
        for name in (*kind.table, *kind.words):
            assert not list(own_code(dict.fromkeys(kind.flags, name)))
    assert not list(own_code({"data": "synthetic:nodes=5"}))
    Path("a.b:c").touch()
    assert not list(own_code({"data": "a.b:c", "codec": None})), "a file"


@pytest.mark.parametrize("target", ["strange.py:Thing", "box.strange:Thing"])
def test_a_choice_is_remembered_for_the_text_that_was_chosen(target: str) -> None:
    chosen = {"model": target}
    note_choice(chosen)
    check_trust(chosen, "here")
    assert not Path("ran").exists(), "it was only read"
    files = [Path("strange.py")] if target.startswith("strange") else [*sorted(Path("box").glob("*.py"))]
    for file in files:
        before = file.read_text()
        file.write_text(before + "# other\n")
        with pytest.raises(UserError, match=f"model {target}; look at it"):
            check_trust(chosen, "here")
        file.write_text(before)
        check_trust(chosen, "here")
    for other in (target.replace("Thing", "Other"), "os.path:join", "no.such.module:Thing", "no.py:Thing"):
        with pytest.raises(UserError, match="add --trust"):
            check_trust({"model": other}, "here")


def test_modules_that_cannot_be_read_are_always_asked_for(here: Path) -> None:
    """So is everything where the cache cannot be written."""
    for target in ("os.path:join", "no.such.module:Thing"):
        note_choice({"model": target})
        with pytest.raises(UserError, match="add --trust"):
            check_trust({"model": target}, "here")
    (here / "home").write_text("no folder")
    note_choice({"model": "strange.py:Thing"})
    with pytest.raises(UserError, match="add --trust"):
        check_trust({"model": "strange.py:Thing"}, "here")


def test_readers_of_a_users_own_are_still_found(here: Path) -> None:
    code = "from sancus.datasets.open import open_graph\n"
    code += "class Own:\n    def __init__(self, text):\n        self.text = text\n"
    code += "    def load(self):\n        return open_graph(self.text)\n"
    (here / "mine.py").write_text(code)
    assert open_graph("mine.py:Own:synthetic:nodes=90,classes=4,degree=6").nodes == 90
