"""A shard on disk that is not what was written is refused, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from sancus.errors import UserError
from sancus.graphs.shards import open_shard
from tests.faults.counts import at_most
from tests.faults.record import record
from tests.faults.test_checkpoint_files import damages
from tests.helpers.command import run
from tests.helpers.graphs import awkward_graph, shards_of

PARTS = 2


def open_all(directory: Path) -> list[int]:
    return [open_shard(directory, rank).rank for rank in range(PARTS)]


def refused(directory: Path) -> str:
    """The one line by which a rank refuses the shards."""
    with pytest.raises(UserError) as caught:
        open_all(directory)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    directory = shards_of(awkward_graph(), "contiguous", PARTS, tmp_path)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    assert len(files) > 20
    tried = 0
    for file in files:
        whole = file.read_bytes()
        for damaged in damages(file, at_most(12, 100)):
            file.write_bytes(damaged)
            line = refused(directory)
            assert f"delete {directory}" in line or "has shard format" in line, line
            tried += 1
        file.unlink()
        assert f"{file} is damaged or missing" in refused(directory)
        tried += 1
        file.write_bytes(whole)
    assert open_all(directory) == [0, 1]
    record("damaged file of a shard directory (cut, flipped, missing)", "-", tried, tried)


@pytest.mark.slow
def test_training_on_a_damaged_shard_is_refused_in_one_line(tmp_path: Path) -> None:
    directory = shards_of(awkward_graph(), "contiguous", PARTS, tmp_path / "shards")
    damaged = {"rank-1/labels.npy": -1, "manifest.json": 40}
    for name, place in damaged.items():
        content = bytearray((directory / name).read_bytes())
        content[place] ^= 1
        whole = (directory / name).read_bytes()
        (directory / name).write_bytes(content)
        result = run(
            "train", directory, "--epochs", "1", "--out", tmp_path / "run", launcher="local", ranks=2
        )
        assert result.code == 2, result
        assert result.err.count("\n") == 1 and f"{directory / name} is damaged or missing" in result.err
        assert "make it again (sancus partition)" in result.err, result
        assert (directory / name).read_bytes() == content, "what the user made is not ours to make again"
        (directory / name).write_bytes(whole)
