"""The transport's contract, over every backend that runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sancus.comm import BACKENDS
from sancus.comm.alone import Alone
from sancus.comm.errors import CommError, DisagreementError
from sancus.comm.group import Group
from sancus.comm.ledger import Entry, Stream
from sancus.comm.records import broadcast_bytes, gather_json
from tests.helpers.processes import run_ranks

HERE = [backend for backend in BACKENDS if backend != "nccl"]
PAYLOAD = Entry("payload", Stream(1, "forward", 0))


def walk(group: Group) -> dict[str, Any]:
    """Every collective once, with awkward sizes; what this rank saw."""
    rank, size = group.rank, group.size
    seen: dict[str, Any] = {}

    tensors = [torch.full((3, 2), float(rank)) for _ in range(size)]
    handles = [group.broadcast(t, owner, PAYLOAD) for owner, t in enumerate(tensors)]
    for handle in handles:
        handle.wait()
    seen["broadcast"] = [t[0, 0].item() for t in tensors]

    counts = [0 if other == rank else (rank + 2 * other) % 3 for other in range(size)]
    coming = [0 if other == rank else (other + 2 * rank) % 3 for other in range(size)]
    rows = [torch.full((n, 2), 10.0 * rank + other) for other, n in enumerate(counts)]
    received = torch.empty(sum(coming), 2)
    group.all_to_all(torch.cat(rows), counts, received, coming, PAYLOAD).wait()
    expected = torch.cat([torch.full((n, 2), 10.0 * other + rank) for other, n in enumerate(coming)])
    seen["all_to_all"] = bool(torch.equal(received, expected))

    nothing = torch.empty(0, 2)
    group.all_to_all(nothing, [0] * size, nothing.clone(), [0] * size, PAYLOAD).wait()

    vector = _vector(rank)
    group.all_reduce(vector)
    seen["all_reduce"] = vector
    seen["all_gather"] = group.all_gather(torch.tensor([rank, size])).tolist()
    seen["json"] = gather_json(group, {"rank": rank, "text": "ä" * rank}, torch.device("cpu"))
    seen["bytes"] = broadcast_bytes(group, b"abc" if rank == 0 else None, torch.device("cpu"))
    seen["wire"] = {p: group.ledger.wire_of(p) for p in ("payload", "parameter")}
    seen["sent"] = sum(counts) * 2 * 4 + (size - 1) * 3 * 2 * 4
    maps = Path("/proc/self/maps").read_text().splitlines()
    seen["shared memory"] = {line.split(maxsplit=5)[-1] for line in maps if "/dev/shm/" in line}
    return seen


def chain(group: Group) -> dict[str, Any]:
    """Three messages down the chain of ranks, the first two at once, between collectives."""
    entry, before, after = Entry("payload", Stream(0, "forward", group.rank)), group.rank - 1, group.rank + 1
    group.all_gather(torch.zeros(1))
    tensors = [torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64), torch.zeros(2, 3)]
    if group.rank == 0:
        tensors = [torch.full_like(tensor, 1.0 + place) for place, tensor in enumerate(tensors)]
    else:
        arriving = Entry("payload", Stream(0, "forward", before))
        handles = [group.receive(tensor, before, arriving) for tensor in tensors[:2]]
        for handle in handles:
            handle.wait()
        group.receive(tensors[2], before, arriving).wait()
    if after < group.size:
        for handle in [group.send(tensor, after, entry) for tensor in tensors]:
            handle.wait()
    group.all_gather(torch.zeros(1))
    wire = {receiver: size for (e, receiver), size in group.ledger.wire.items() if e == entry}
    return {"last": [t.view(-1)[0].item() for t in tensors], "wire": wire, "number": group.number}


def mistake(group: Group) -> str:
    """Rank 0 sends something else than what rank 1 waits for."""
    try:
        if group.rank == 0:
            group.send(torch.ones(3), 1, PAYLOAD).wait()
        else:
            group.receive(torch.zeros(3), 0, Entry("evaluation", PAYLOAD.stream)).wait()
    except DisagreementError as error:
        return str(error)
    return "no error"


def wait_for_nobody(group: Group) -> None:
    """Rank 0 waits for a broadcast that rank 1 never makes."""
    if group.rank == 0:
        group.transport.timeout = 1.0  # passes for certain, on any machine: nobody broadcasts
        group.broadcast(torch.empty(4), 1, PAYLOAD).wait()


def _vector(rank: int) -> torch.Tensor:
    return torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", HERE)
def test_collectives(backend: str, ranks: int) -> None:
    results = run_ranks("tests.ranks.test_transport:walk", ranks, backend=backend)
    total = torch.stack([_vector(rank) for rank in range(ranks)]).sum(dim=0)
    for result in results:
        assert result["broadcast"] == list(range(ranks))
        assert result["all_to_all"]
        torch.testing.assert_close(result["all_reduce"], total)
        assert torch.equal(result["all_reduce"], results[0]["all_reduce"])
        assert result["all_gather"] == [[rank, ranks] for rank in range(ranks)]
        assert result["json"] == [{"rank": rank, "text": "ä" * rank} for rank in range(ranks)]
        assert result["bytes"] == b"abc"
        assert result["wire"]["payload"] == result["sent"]
        slices = -(-7 // ranks)
        assert result["wire"]["parameter"] == 2 * (ranks - 1) * slices * 8
        named = [name for name in result["shared memory"] if not name.endswith(" (deleted)")]
        assert not named, "what has a name is left behind where a rank is killed"
        assert result["shared memory"] or backend != "mpi"


@pytest.mark.parametrize("backend", HERE)
def test_messages_between_two_ranks(backend: str) -> None:
    results = run_ranks("tests.ranks.test_transport:chain", 3, backend=backend)
    size = 2 * (2 * 3 * 4) + 4 * 8
    assert [result["last"] for result in results] == [[1.0, 2, 3.0]] * 3
    assert [result["wire"] for result in results] == [{1: size}, {2: size}, {}]
    assert len({result["number"] for result in results}) == 1


@pytest.mark.parametrize("backend", HERE)
def test_a_message_of_another_purpose_is_refused(backend: str) -> None:
    first, second = run_ranks("tests.ranks.test_transport:mistake", 2, backend=backend)
    assert first == "no error"
    assert second.startswith("rank 1: send 1: what came from rank 0 has label ")


def test_all_reduce_gives_the_same_bits_on_every_transport() -> None:
    results = [run_ranks("tests.ranks.test_transport:walk", 3, backend=b)[0]["all_reduce"] for b in HERE]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("backend", HERE)
def test_nobody_waits_for_ever(backend: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        run_ranks("tests.ranks.test_transport:wait_for_nobody", 2, backend=backend)
    story = str(failure.value)
    assert CommError.__name__ in story
    assert "rank 0: broadcast from rank 1 (forward, layer 1) failed after" in story


def test_alone_is_the_identity() -> None:
    group = Group(Alone())
    vector = torch.randn(5)
    before = vector.clone()
    group.all_reduce(vector)
    assert torch.equal(vector, before)
    assert torch.equal(group.all_gather(vector), before[None])
    assert not group.ledger.wire
