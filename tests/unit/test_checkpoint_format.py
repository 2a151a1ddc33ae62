"""Checkpoints of another version: one of a later version is refused in one line, before anything is used.

Those of earlier versions, which name no format, are read: `tests/launch/test_before.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sancus.cli.train import read_flags
from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.graphs.shards import Shard, open_shard
from sancus.runs.build import make_trainer
from sancus.runs.checkpoints import contents, reader
from sancus.runs.predict import _best_of
from tests.helpers.checkpoints import write_checkpoint
from tests.helpers.graphs import awkward_graph, shards_of

LATER = r"^the checkpoint has format 2, this version reads 1; go on with the version that wrote it, or start "


def write_run(run: Path, epoch: int, **said: object) -> None:
    state = {"extra": {"config": Config().to_dict() | {"model": "gin"}}} | said
    name = f"epoch-{epoch:08d}"
    write_checkpoint(run / "checkpoint" / name, {"state.json": json.dumps(state).encode()})


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return open_shard(shards_of(awkward_graph(), "contiguous", 1, tmp_path), 0)


def test_a_checkpoint_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """Also where one of ours is before it: that one would lose what was trained since."""
    write_run(tmp_path, 3, format=reader.FORMAT)
    assert read_flags(["--resume", str(tmp_path)])[1].model == "gin"
    write_run(tmp_path, 4, format=2)
    for use in (lambda: read_flags(["--resume", str(tmp_path)]), lambda: _best_of(tmp_path / "checkpoint")):
        with pytest.raises(UserError, match=LATER):
            use()


def test_ranks_refuse_it_before_they_use_any_of_it(shard: Shard) -> None:
    """Where `--resume auto` or a restart finds it, no command line has looked before."""
    trainer = make_trainer(Config(), shard, Group(Alone()), torch.device("cpu"))
    files = contents.pack(trainer, {"ranks": 1})
    state = json.loads(files["state.json"])
    assert state["format"] == reader.FORMAT
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.next_epoch = 7
    files["state.json"] = json.dumps(state | {"format": 2, "next_epoch": 99}).encode()
    with pytest.raises(UserError, match=LATER):
        contents.unpack(files, trainer)
    assert trainer.next_epoch == 7
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    del state["format"]
    files["state.json"] = json.dumps(state).encode()
    assert contents.unpack(files, trainer) == {"ranks": 1}, "of an earlier version"
    assert trainer.next_epoch == 0


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000], ids=["empty", "list", "cut", "deep"])
def test_what_is_no_state_names_no_format(content: bytes) -> None:
    reader.check_format({"state.json": content})
