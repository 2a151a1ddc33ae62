"""Groups of a mesh: every axis, every collective, on gloo and MPI; what they count, and under whose name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sancus.comm.group import Group
from sancus.comm.header import PLAIN_HEADER
from sancus.comm.layout import AXES, Layout
from sancus.comm.ledger import AGREEMENT, PARAMETER, Entry, Stream
from sancus.comm.mesh import Mesh
from sancus.comm.observer import Observer
from tests.helpers.processes import run_ranks

RANKS = 4
LAYOUTS = [(2, 1, 2), (1, 2, 2), (2, 2, 1), (1, 1, 4)]
PAYLOAD = Entry("payload", Stream(1, "forward", 0))


def walk(group: Group) -> dict[str, Any]:
    """Every collective once, the background's and the ring's too; what this process saw."""
    rank, size = group.rank, group.size
    blocks = [torch.full((3,), float(group.members[rank])) for _ in range(size)]
    for owner, block in enumerate(blocks):
        group.broadcast(block, owner, PAYLOAD, background=owner % 2 == 1).wait()
    seen: dict[str, Any] = {"broadcast": [block[0].item() for block in blocks]}
    if size > 1:
        group.ring = True
        ring = torch.full((3,), float(group.members[rank]))
        group.broadcast(ring, size - 1, PAYLOAD).wait()
        seen["ring"] = ring[0].item()
    counts = [int(other != rank) for other in range(size)]
    for background in (False, True):
        received = torch.empty(size - 1, 2)
        mine = torch.full((size - 1, 2), float(group.members[rank]))
        group.all_to_all(mine, counts, received, counts, PAYLOAD, background=background).wait()
        seen[f"all_to_all {background}"] = received[:, 0].tolist()
    total = torch.full((5,), 10.0 ** group.members[rank], dtype=torch.float64)
    group.all_reduce(total)
    seen["all_reduce"] = total.tolist()
    seen["all_gather"] = group.all_gather(torch.tensor([group.members[rank]])).flatten().tolist()
    return seen


class Places(Observer):
    """Keeps the numbers that it is told."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def started(self, number: int, what: str, stream: Stream | None) -> None:
        self.numbers.append(number)


def visit(group: Group, layout: tuple[int, int, int]) -> dict[str, Any]:
    """All axes of a mesh; then processes of different groups do different numbers of collectives."""
    mesh = Mesh(group, Layout(*layout))
    group.observer = Places()
    seen: dict[str, Any] = {}
    for axis in AXES:
        part, before = mesh.group(axis), dict(group.ledger.wire)
        assert part.clock is group.clock and part.ledger is group.ledger and part.observer is group.observer
        assert part.members[part.rank] == group.rank
        walked = walk(part)
        wire = {key: size - before.get(key, 0) for key, size in group.ledger.wire.items()}
        seen[axis] = {
            "members": part.members,
            "name": part.name,
            "number": part.number,
            "walk": walked,
            "wire": {(e.purpose, receiver): size for (e, receiver), size in wire.items() if size},
        }
    stage = mesh.group("stages")
    if stage.size > 1 and stage.rank == 0:
        stage.send(torch.tensor([group.rank]), 1, PAYLOAD).wait()
    elif stage.size > 1:
        arrived = torch.zeros(1, dtype=torch.int64)
        stage.receive(arrived, 0, PAYLOAD).wait()
        seen["arrived"] = arrived.item()
    for _ in range(1 + group.rank // 2):
        if mesh.group("parts") is not group:
            mesh.group("parts").all_gather(torch.zeros(1))
    group.all_gather(torch.zeros(1))
    numbers = group.observer.numbers
    return seen | {"numbers": numbers == sorted(numbers) and numbers[-1] == group.number}


def expected_wire(members: tuple[int, ...], rank: int) -> dict[tuple[str, int], int]:
    """Bytes to each other member in `walk`: broadcasts, one by the ring, two all-to-alls, a sum, a gather."""
    size, found = len(members), {}
    for receiver in members:
        if receiver != rank:
            rings = int(rank == members[-1])
            messages = 1 + rings + 2 + 2 + 1
            found["payload", receiver] = 12 * (1 + rings) + 2 * 8
            found["parameter", receiver] = 2 * -(-5 // size) * 8
            found["agreement", receiver] = messages * PLAIN_HEADER + 8
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_every_axis_and_collective(backend: str, layout: tuple[int, int, int]) -> None:
    shape = Layout(*layout)
    results = run_ranks("tests.ranks.test_mesh:visit", RANKS, backend=backend, layout=layout)
    for rank, result in enumerate(results):
        for axis in AXES:
            (members,) = [members for members in shape.sets(axis) if rank in members]
            others = [float(other) for other in members if other != rank]
            seen = result[axis]
            assert seen["members"] == members
            assert seen["walk"]["broadcast"] == list(members)
            assert seen["walk"].get("ring", members[-1]) == members[-1]
            assert seen["walk"]["all_to_all False"] == seen["walk"]["all_to_all True"] == others
            assert seen["walk"]["all_reduce"] == [sum(10.0**other for other in members)] * 5
            assert seen["walk"]["all_gather"] == list(members)
            assert seen["wire"] == expected_wire(members, rank)
            assert (seen["name"] == "all") == (len(members) == RANKS)
        assert result["numbers"]
        if shape.stages == 2:
            below = rank - shape.rank(1, 0, 0)
            assert result.get("arrived") == (below if below >= 0 else None)


def refuse(group: Group) -> list[str]:
    """One process leaves out a collective of a sub-group; the error names processes of the run."""
    parts = Mesh(group, Layout(stages=2, parts=2)).group("parts")
    group.transport.timeout = parts.transport.timeout = 5.0
    if group.rank == 2:
        parts.number += 1
    try:
        parts.all_gather(torch.zeros(1), PARAMETER if group.rank < 2 else AGREEMENT)
    except Exception as error:
        return [str(error)]
    return []


def test_errors_name_processes_of_the_run() -> None:
    results = run_ranks("tests.ranks.test_mesh:refuse", RANKS)
    assert results[:2] == [[], []]
    assert results[2][0].startswith("rank 2: all-gather 2: what came from rank 3 has number 1, not 2")
    assert results[3][0].startswith("rank 3: all-gather 1: what came from rank 2 has number 2, not 1")
