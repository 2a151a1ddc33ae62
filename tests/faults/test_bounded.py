"""A long run: neither memory nor checkpoints grow with its epochs, and nothing that is at the end is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.errors import UserError
from sancus.exchange.crossing import Crossing
from sancus.runs.checkpoints import contents, durable, names
from sancus.runs.outcome import Outcome
from sancus.runs.stream_log import StreamLog
from sancus.training.trainer import Trainer
from tests.faults.sessions import GRAPH, newest, train
from tests.helpers.processes import run_ranks

# Owners look at drift, and now and then at what the codec rounds away.
WORK = (GRAPH, "--hidden", "4", "--threads", "1", "--staleness", "variation-gap:gap=0.02", "--codec", "int4")
RANKS, HALF, WHOLE = 2, 14, 20


def logged(crossing: Crossing) -> int:
    """How many answers and measurements a crossing holds."""
    decisions = (crossing.decisions.as_array() >= 0).sum()
    return int(decisions) + len(crossing.agreement.measured) + len(crossing.gauge.measured)


def session(group: Group, out: Path, epochs: int, words: tuple[str | Path, ...] = ()) -> list[int]:
    """Train; how much is logged in memory when each epoch begins."""
    seen: list[int] = []
    original = Trainer.train_epoch

    def train_epoch(trainer: Trainer, epoch: int) -> float:
        seen.append(logged(trainer.exchange.crossing))
        return original(trainer, epoch)

    with mock.patch.object(Trainer, "train_epoch", train_epoch):
        train(group, *WORK, "--epochs", str(epochs), "--out", out, *words)
    return seen


def often(group: Group, out: Path) -> list[int]:
    return session(group, out, 120, ("--checkpoint-every", "20", "--keep", "9"))


def resumed(group: Group, source: Path, out: Path) -> list[int]:
    return session(group, out, WHOLE, ("--resume", source))


def without_log(group: Group, out: Path) -> None:
    with mock.patch.object(StreamLog, "__init__", side_effect=OSError(30, "Read-only file system")):
        session(group, out, WHOLE)


def start(function: str, **arguments: Any) -> list[Any]:
    return run_ranks(f"{__name__}:{function}", RANKS, **arguments)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    start("session", out=out, epochs=WHOLE)
    return out


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first epochs of it."""
    out = tmp_path_factory.mktemp("half") / "run"
    start("session", out=out, epochs=HALF)
    return out


def sizes_of(checkpoint: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in checkpoint.iterdir()}


def arrays_in(out: Path) -> dict[str, Any]:
    with np.load(out / "decisions.npz") as arrays:
        return dict(arrays)


def assert_same_log(out: Path, whole: Path) -> None:
    """Decisions, drift and codec errors of all epochs; sends and skips of the bill; lines of the logs."""
    expected, found = arrays_in(whole), arrays_in(out)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    bills = [json.loads((run / "run.json").read_text())["communication"]["streams"] for run in (whole, out)]
    keys = ("layer", "direction", "owner", "sends", "skips", "codec_error", "codec_noise")
    assert len({json.dumps([[row[key] for key in keys] for row in bill]) for bill in bills}) == 1


def test_checkpoints_and_memory_do_not_grow_with_epochs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for seen in start("often", out=out):
        assert set(seen) == {0}, "an epoch begins with an empty log"
    early, late = (sizes_of(out / "checkpoint" / f"epoch-{epoch:08d}") for epoch in (20, 120))
    assert early.keys() == late.keys()
    for name, size in early.items():
        assert late[name] <= size + 200, (name, "more than longer numbers", size, late[name])
    decided = arrays_in(out)["decisions"]
    assert (decided >= 0).any(axis=(1, 2)).all(), "what was forgotten is in the files"


def test_what_is_in_the_logs_is_what_was_measured(whole: Path) -> None:
    arrays = arrays_in(whole)
    used = arrays["decisions"] >= 0
    assert used.any() and (arrays["decisions"] == 0).any()
    for name in ("drift", "codec_error", "codec_noise"):
        assert np.isfinite(arrays[name]).any() and not np.isfinite(arrays[name][~used]).any()


def test_a_run_that_can_write_no_log_keeps_it_in_memory(whole: Path, tmp_path: Path) -> None:
    start("without_log", out=tmp_path / "run")
    assert_same_log(tmp_path / "run", whole)


def make_older(out: Path) -> None:
    """Give the newest checkpoint the form of before: all decisions and measurements are in it."""
    folder, arrays = newest(out), arrays_in(out)
    state = json.loads((folder / "state.json").read_bytes())
    state["extra"]["decisions"] = arrays["decisions"].tolist()
    (folder / "state.json").write_bytes(json.dumps(state).encode())
    for rank in range(RANKS):
        _add_measured(folder / names.rank_file(rank), rank, arrays)
    sums = {name: durable.checksum((folder / name).read_bytes()) for name in sizes_of(folder)}
    del sums[durable.MANIFEST]
    (folder / durable.MANIFEST).write_bytes(durable.manifest_text(sums))


def _add_measured(path: Path, owner: int, arrays: dict[str, Any]) -> None:
    """Rewrite the header of a rank's file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    plain = json.loads(header["__metadata__"]["plain"])
    plain["measured"], plain["codec_errors"] = [], []
    for epoch, layer, side, place in np.argwhere(arrays["decisions"] >= 0).tolist():
        stream = f"{layer}.{('forward', 'backward')[side]}.{owner}"
        drift, error, noise = (
            None if np.isnan(value) else float(value)
            for value in (arrays[name][epoch, layer, side, owner] for name in list(arrays)[1:])
        )
        if place == owner and drift is not None:
            plain["measured"].append([epoch, stream, drift])
        if place == owner and error is not None:
            plain["codec_errors"].append([epoch, stream, error, noise])
    del plain["looks"]
    header["__metadata__"]["plain"] = json.dumps(plain)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize("made", ["now", "before", "before, without logs"])
def test_a_run_resumed_elsewhere_has_the_log_of_all_epochs(
    half: Path, whole: Path, tmp_path: Path, made: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(half, first)
    if made != "now":
        make_older(first)
    if "without" in made:
        shutil.rmtree(first / "logs")
    start("resumed", source=first, out=second)
    assert_same_log(second, whole)
    for rank in range(RANKS):
        lines = (second / "logs" / f"rank-{rank}.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(WHOLE))


def alone(*words: str | Path) -> list[str]:
    return train(Group(Alone()), *WORK, "--epochs", "3", *words)


def test_results_are_there_before_the_last_checkpoint_can_fail(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with (
        mock.patch.object(contents, "pack_rank", side_effect=ValueError("header too large")),
        pytest.raises(ValueError, match="header too large"),
    ):
        alone("--out", out)
    assert "result" in json.loads((out / "run.json").read_text())
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    with np.load(out / "predictions.npz") as arrays:
        assert len(arrays["prediction"]) == 300


@pytest.mark.parametrize("checkpoint", [True, False])
def test_resume_is_advised_only_where_there_is_a_checkpoint(
    tmp_path: Path, checkpoint: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    full = OSError(28, "No space left on device")
    write = durable.write_file if checkpoint else mock.Mock(side_effect=full)
    with (
        mock.patch.object(Outcome, "write", side_effect=full),
        mock.patch.object(durable, "write_file", write),
        pytest.raises(UserError) as caught,
    ):
        alone("--out", tmp_path / "run")
    assert "No space left on device; free space" in str(caught.value)
    assert ("--resume" in str(caught.value)) is checkpoint
    assert "the one before is kept" not in capsys.readouterr().err
