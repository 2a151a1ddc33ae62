"""A run that was stopped and resumed is, bit for bit, a run that never stopped; or it says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.errors import UserError
from tests.faults.counts import everything, only_in_full
from tests.faults.record import record
from tests.faults.sessions import GRAPH, assert_same, train
from tests.helpers.command import losses
from tests.helpers.processes import run_ranks

EPOCHS = 12
SETTINGS = {
    "pipelined": "--preset pipegcn --codec int4 --error-feedback",
    "variation gap": "--plan halo --staleness variation-gap:gap=0.05 --dropout 0.5 --layers 3",
    "adaptive": "--plan block --staleness epoch-adaptive:bound=2 --backward epoch-fixed:bound=1",
    "drawn rows": "--preset bns:0.4 --model sage --codec int4",
    "labels": "--preset supergcn --error-feedback",
    "inductive": "--inductive --plan halo --staleness epoch-fixed:bound=2",
    "sage": "--model sage --norm batch --plan halo --staleness pipelined --patience 4",
    "gat": "--model gat --heads 2 --attention-dropout 0.3 --staleness epoch-fixed:bound=2",
    "auto codec": "--codec auto:budget=2.5 --agree epoch --staleness variation-gap:gap=0.05",
    "stale gradients": "--preset gnnpipe --layers 3 --chunks 4 --chunk-order alternate --stale-gradients",
    "few bits": "--preset gnnpipe:1 --chunks 3 --history-every 3 --codec int4 --parameter-codec low-rank",
    "mini-batches": "--preset exact --batch-size 8 --fanout 3 --sampler labor --parameter-codec int2",
    "momentum": "--preset sylvie-a:3 --optimizer sgd --momentum 0.9 --schedule cosine --warmup 3",
}


def flags_of(setting: str) -> list[str]:
    return [GRAPH, "--hidden", "8", "--epochs", str(EPOCHS), *SETTINGS[setting].split()]


def draw(_: int) -> None:
    """As a model of a user's own may do, with torch's own dropout."""
    torch.rand(3)


def whole_and_resumed(group: Group, folder: Path, stops: list[int], names: list[str]) -> None:
    """Every setting, uninterrupted and stopped after each of some epochs."""
    for name in names:
        train(group, *flags_of(name), "--out", folder / name / "whole", before_epoch=draw)
        for stop in stops:
            out = folder / name / f"stopped-{stop}"
            train(group, *flags_of(name), "--out", out, stop_after=stop, before_epoch=draw)
            train(group, "--resume", out, before_epoch=draw)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("backend", "ranks"), [("gloo", 3), pytest.param("mpi", 2, marks=[pytest.mark.mpi, only_in_full()])]
)
def test_resumed_equals_uninterrupted(backend: str, ranks: int, tmp_path: Path) -> None:
    stops = list(range(1, EPOCHS)) if everything() else [5]
    names = list(SETTINGS)
    arguments: dict[str, Any] = {"folder": tmp_path, "stops": stops, "names": names}
    run_ranks(f"{__name__}:whole_and_resumed", ranks, backend=backend, timeout=1200, **arguments)
    for name in names:
        whole = tmp_path / name / "whole"
        assert 1 < len(losses(whole)) <= EPOCHS
        for stop in stops:
            assert_same(tmp_path / name / f"stopped-{stop}", whole)
    tried = len(names) * len(stops)
    record("stop after epoch k and resume: bit-identical", backend, tried, tried)


def alone(*argv: str | Path, stop_after: int | None = None) -> list[str]:
    """One rank, in this process."""
    flags = (GRAPH, "--hidden", "8", "--epochs", str(EPOCHS), *argv)
    return train(Group(Alone()), *flags, stop_after=stop_after)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank, never stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    alone("--out", out)
    return out


def test_resume_auto_goes_on_with_what_is_there(whole: Path, tmp_path: Path) -> None:
    flags = ("--out", tmp_path / "run", "--resume", "auto")
    first = alone(*flags, stop_after=4)
    assert first[0] == "no checkpoint yet: the run starts at the beginning"
    assert first[-1].startswith("stopped by SIGTERM after epoch 4; go on with: sancus train --resume ")
    second = alone(*flags, stop_after=7)
    assert second[0] == f"resumed from {tmp_path / 'run' / 'checkpoint' / 'epoch-00000004'}"
    alone(*flags)
    assert_same(tmp_path / "run", whole)
    again = alone(*flags)
    assert again[0].endswith(f"epoch-{EPOCHS:08d}"), "a run that is done has nothing left to do"
    assert_same(tmp_path / "run", whole)


@pytest.mark.parametrize("keep", [1, 3])
def test_keep(keep: int, whole: Path, tmp_path: Path) -> None:
    alone("--out", tmp_path / "run", "--checkpoint-every", "2", "--keep", str(keep))
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoint").iterdir())
    assert kept == [f"epoch-{epoch:08d}" for epoch in range(2, EPOCHS + 1, 2)][-keep:]
    assert_same(tmp_path / "run", whole)


def test_resume_into_another_directory_leaves_the_first_alone(whole: Path, tmp_path: Path) -> None:
    alone("--out", tmp_path / "first", stop_after=5)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "first").rglob("*"))
    alone("--resume", tmp_path / "first", "--out", tmp_path / "second")
    assert_same(tmp_path / "second", whole)
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "first").rglob("*")) == before


# Another run than the one that was stopped


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with histories, stopped in the middle."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    run_ranks(f"{__name__}:stop", 2, out=out)
    return out


STALE = (GRAPH, "--hidden", "8", "--epochs", str(EPOCHS), "--plan", "halo", "--staleness", "pipelined")


def stop(group: Group, out: Path) -> list[str]:
    return train(group, *STALE, "--out", out, stop_after=6)


def go_on(group: Group, source: Path, argv: list[str]) -> list[str] | str:
    """What was said, or the one line that refuses."""
    try:
        return train(group, *argv[:1], "--resume", source, *argv[1:])
    except UserError as error:
        return str(error)


COLD = "weights and optimizer are taken over, histories start cold"


@pytest.mark.parametrize(
    ("ranks", "argv", "expected"),
    [
        (3, [], f"the checkpoint was made by 2 ranks: {COLD}"),
        (2, ["--partitioner", "random"], f"the parts or the data are others: {COLD}"),
        (2, ["--plan", "block"], f"--plan is another: {COLD}"),
        (2, ["--codec", "int8"], f"--codec is another: {COLD}"),
        (2, ["--staleness", "epoch-fixed:bound=2"], f"--staleness is another: {COLD}"),
        (2, ["--lr", "0.02"], None),
    ],
)
def test_resume_of_something_else_says_so(
    ranks: int, argv: list[str], expected: str | None, stopped: Path, tmp_path: Path
) -> None:
    flags = [GRAPH, *argv, "--out", str(tmp_path / "new")]
    lines, *_ = run_ranks(f"{__name__}:go_on", ranks, source=stopped, argv=flags)
    assert lines[0] == f"resumed from {stopped / 'checkpoint' / 'epoch-00000006'}"
    said = [line for line in lines if COLD in line]
    assert said == ([] if expected is None else [expected]), lines
    assert len(losses(tmp_path / "new")) == EPOCHS
    assert losses(tmp_path / "new")[:6] == losses(stopped)
    record("resume with other ranks, parts or settings: told, weights taken over", "gloo", 1, 1)


@pytest.mark.parametrize("data", ["synthetic:nodes=310,features=12,classes=4,degree=6", f"{GRAPH},seed=1"])
def test_resume_on_another_graph_is_refused(data: str, stopped: Path, tmp_path: Path) -> None:
    flags = [data, "--out", str(tmp_path / "new")]
    told = run_ranks(f"{__name__}:go_on", 2, source=stopped, argv=flags)
    assert set(told) == {f"{stopped} was trained on another graph; give its data to --resume, or start anew"}
    record("resume with another graph or model: refused", "gloo", 1, 1)


def test_resume_of_another_model_is_refused(stopped: Path, tmp_path: Path) -> None:
    flags = [GRAPH, "--hidden", "9", "--out", str(tmp_path / "new")]
    told = run_ranks(f"{__name__}:go_on", 2, source=stopped, argv=flags)
    assert set(told) == {"the checkpoint holds another model; resume with the settings of the first run"}
    record("resume with another graph or model: refused", "gloo", 1, 1)
