"""Whatever bytes somebody gives, they end in peace: the corpora of `make fuzz`, changed by a fixed draw."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sancus.datasets.unpack import unpack
from sancus.errors import UserError
from sancus.graphs.shards import UnusableShardsError, open_shard
from tests.fuzz.targets import CUT, TARGETS, headers

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
CHANGES = 12  # of every file of a corpus
LARGEST = 8192  # bytes of a file of a corpus


def changed(content: bytes, draw: random.Random) -> bytes:
    """A few bytes are other ones, or are gone, or come twice."""
    data = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) + 1)
        how = draw.choice(("other", "gone", "twice", "cut"))
        piece = slice(place, place + draw.randint(1, 16))
        if how == "other":
            data[piece] = draw.randbytes(len(data[piece]))
        elif how == "gone":
            del data[piece]
        elif how == "twice":
            data[place:place] = data[piece]
        else:
            data = data[:place] or data
    return bytes(data)


def test_every_target_has_a_small_corpus() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    for name in TARGETS:
        sizes = [path.stat().st_size for path in (CORPUS / name).iterdir()]
        assert sizes and max(sizes) <= LARGEST, name


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_end_in_peace(name: str) -> None:
    draw = random.Random(name)
    for path in sorted((CORPUS / name).iterdir()):
        content = path.read_bytes()
        TARGETS[name](content)
        for number in range(CHANGES):
            given = changed(content, draw)
            try:
                TARGETS[name](given)
            except BaseException as error:
                raise AssertionError(f"{path.name}, change {number}: {given!r}") from error


def test_a_target_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were messages believed without their checksum, the target would say so."""
    monkeypatch.setattr(
        "sancus.comm.header.Header.check", lambda header, message, *_: message[: header.content]
    )
    with pytest.raises(AssertionError):
        headers((CORPUS / "headers" / "flip").read_bytes())


# What was found, each in one line.


def test_a_member_without_a_name_is_a_damaged_archive(tmp_path: Path) -> None:
    archive = tmp_path / "download.zip"
    archive.write_bytes((CORPUS / "zips" / "member-without-a-name").read_bytes())
    with pytest.raises(UserError, match=r"download\.zip: is damaged \(.*\); download it again"):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["download.zip"]


def test_an_array_whose_header_never_ends_is_a_damaged_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum is right, so that only the reading of it can tell."""
    _, array, *_ = (CORPUS / "shards" / "header-that-never-ends").read_bytes().split(CUT)
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "nodes.npy").write_bytes(array.split(b"(")[0] + b"(")
    manifest = {"format": 4, "checksums": {"rank-0/nodes.npy": "its own"}}
    monkeypatch.setattr("sancus.graphs.shards.read_manifest", lambda _: manifest)
    monkeypatch.setattr("sancus.graphs.shards.checksum_of_file", lambda _: "its own")
    with pytest.raises(UnusableShardsError, match=r"nodes\.npy is damaged or missing"):
        open_shard(tmp_path, 0)
