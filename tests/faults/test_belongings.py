"""`--out` on a directory with files in it: what is not proven to be of a run there is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sancus.cli.runs import report
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import OutputSettings
from sancus.errors import UserError
from sancus.runs import belongings
from sancus.runs.checkpoints import durable, names
from sancus.runs.directory import check_directory
from tests.faults.sessions import GRAPH, train
from tests.helpers.command import TOP, losses, run

BEFORE = TOP / "tests" / "fixtures" / "before" / "run-1rank"
NOT_OURS = "which no run there has written as it is; choose another directory, or move it away"
MINE = "mine\n"
EPOCHS = ("--epochs", "2")
FOREIGN = ("logs/slurm.out", "tensorboard/events.out.tfevents.1.host.2.0", "report.html", "predictions.npz")


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its name from there on."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def put(directory: Path, name: str) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MINE)
    return path


def train_here(directory: Path, *flags: str) -> None:
    train(Group(Alone()), GRAPH, *EPOCHS, "--out", directory, *flags)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    train(Group(Alone()), GRAPH, *EPOCHS, "--track", "tensorboard", "--out", out)
    return out


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A run that was moved: what proves its files goes with them."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("name", [*FOREIGN, "checkpoint/notes", ".run"])
@pytest.mark.parametrize("flags", [{}, {"resume": Path("auto")}], ids=["plain", "resume auto"])
def test_files_of_somebody_else_are_never_touched(name: str, flags: dict[str, Path], tmp_path: Path) -> None:
    mine = put(tmp_path, name)
    if name == ".run":
        mine.write_text("#!/bin/sh\necho mine\n")
    before = contents(tmp_path)
    if flags and "/" in name:  # in a folder that is ours and theirs
        train_here(tmp_path, "--resume", "auto")
        assert contents(tmp_path)[name] == before[name]
        return
    refused = f"holds a run already|{NOT_OURS}"
    with pytest.raises(UserError, match=refused):
        check_directory(OutputSettings(out=tmp_path, **flags))
    with pytest.raises(UserError, match=refused):
        train_here(tmp_path, *(["--resume", "auto"] if flags else []))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["report.html", "predictions.npz", "metrics.jsonl", "logs/rank-0.log", "logs/merges.jsonl"]
)
def test_overwrite_keeps_what_no_run_has_written(name: str, tmp_path: Path) -> None:
    put(tmp_path, name)
    with pytest.raises(UserError, match=f"holds {name}, {NOT_OURS}"):
        train_here(tmp_path, "--overwrite")
    assert contents(tmp_path) == {name: MINE.encode()}


def test_the_command_line_refuses_in_one_line(tmp_path: Path) -> None:
    put(tmp_path, "report.html")
    result = run("train", GRAPH, "--out", tmp_path, "--ranks", "2")
    line = f"sancus: --out {tmp_path} holds report.html, {NOT_OURS}\n"
    assert (result.code, result.err) == (2, line), result
    assert contents(tmp_path) == {"report.html": MINE.encode()}


def test_overwrite_removes_the_run_and_leaves_the_rest(copied: Path) -> None:
    mine = ["notes.txt", "logs/slurm.out", "checkpoint/notes", "checkpoint/epoch-00000002/notes", FOREIGN[1]]
    for name in mine:
        put(copied, name)
    old = set(contents(copied)) - set(mine)
    train(Group(Alone()), GRAPH, "--epochs", "1", "--out", copied, "--overwrite")
    left = contents(copied)
    assert {left[name] for name in mine} == {MINE.encode()}
    assert len(losses(copied)) == 1
    gone = {name for name in old if name.startswith(("tensorboard/", "checkpoint/epoch-00000002/"))}
    assert len(gone) > 2 and not gone & set(left)


@pytest.mark.parametrize("name", belongings.WHOLE)
def test_a_file_that_was_changed_since_is_not_the_run_s(name: str, copied: Path) -> None:
    with (copied / name).open("ab") as file:
        file.write(MINE.encode())
    before = contents(copied)
    for flags in (["--overwrite"], ["--resume", str(copied)]):
        with pytest.raises(UserError, match=f"holds {name}, {NOT_OURS}"):
            train_here(copied, *flags)
    assert contents(copied) == before


def test_a_page_that_was_written_later_is_the_run_s_too(copied: Path) -> None:
    (copied / "report.html").unlink()
    report(copied)
    report(copied)
    train_here(copied, "--overwrite")
    put(copied, "report.html")
    with pytest.raises(UserError, match=r"report\.html is not as a run has written it; move it away"):
        report(copied)
    assert (copied / "report.html").read_text() == MINE


@pytest.mark.parametrize("file", [names.rank_file(0), "notes"])
def test_a_file_in_an_old_checkpoint_stays(file: str, tmp_path: Path) -> None:
    put(tmp_path, f"epoch-00000001/{file}")
    durable.retire(tmp_path / "epoch-00000001")
    durable.sweep(tmp_path)
    assert [path.name for path in tmp_path.glob(".old-*/*")] == (["notes"] if file == "notes" else [])
    assert not (tmp_path / "epoch-00000001").exists()


def test_a_run_of_the_version_before_is_replaced(tmp_path: Path) -> None:
    out = Path(shutil.copytree(BEFORE, tmp_path / "run"))
    put(out, "logs/slurm.out")
    train_here(out, "--overwrite")
    left = set(contents(out))
    assert {"expected.json", "predictions-expected.npz", "logs/slurm.out"} <= left
    assert len(losses(out)) == 2 and not (out / "checkpoint/epoch-00000006").exists()


@pytest.mark.parametrize("name", ["report.html", "predictions.npz", "metrics.jsonl"])
def test_beside_a_run_of_the_version_before_a_file_must_look_like_ours(name: str, tmp_path: Path) -> None:
    out = Path(shutil.copytree(BEFORE, tmp_path / "run"))
    put(out, name)
    before = contents(out)
    with pytest.raises(UserError, match=f"holds {name}, {NOT_OURS}"):
        train_here(out, "--overwrite")
    assert contents(out) == before


def test_a_crash_at_any_rename_leaves_only_what_can_be_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was the last file to get its name, the next run replaces all of them."""

    class Crash(BaseException):
        pass

    replace: Callable[[Path, Path], None] = belongings.os.replace
    left = [0]

    def crash(partial: Path, target: Path) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crash
        replace(partial, target)

    count = 0
    while True:
        count += 1
        left[0] = count
        with monkeypatch.context() as patch:
            patch.setattr(belongings.os, "replace", crash)
            try:
                train_here(tmp_path, "--overwrite")
                break
            except Crash:
                pass
    assert count > 6
    train_here(tmp_path, "--overwrite")
