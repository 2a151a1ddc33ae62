"""Layouts and meshes without a network: which processes act together along which axis."""

from __future__ import annotations

import pytest

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.comm.layout import AXES, Layout
from sancus.comm.mesh import Mesh

SHAPES = [(1, 1, 1), (1, 1, 4), (2, 1, 2), (1, 2, 2), (2, 2, 1), (2, 3, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_axis_divides_all_processes(shape: tuple[int, int, int]) -> None:
    layout = Layout(*shape)
    for axis in AXES:
        sets = layout.sets(axis)
        assert sorted(rank for members in sets for rank in members) == list(range(layout.size))
        assert all(list(members) == sorted(members) for members in sets)


def test_who_acts_with_whom() -> None:
    layout = Layout(stages=2, copies=2, parts=2)
    assert layout.sets("all") == [tuple(range(8))]
    assert layout.sets("parts") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert layout.sets("replicas") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert layout.sets("stages") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_a_layout_without_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="copies must be at least 1, not 0"):
        Layout(copies=0)
    with pytest.raises(ValueError, match="no axis 'rows'"):
        Layout().sets("rows")  # type: ignore[arg-type]


def test_a_mesh_has_the_size_of_its_world() -> None:
    world = Group(Alone())
    with pytest.raises(ValueError, match="1 stages x 1 copies x 2 parts are 2 processes, but the run has 1"):
        Mesh(world, Layout(parts=2))
    mesh = Mesh(world, Layout())
    assert all(mesh.group(axis) is world for axis in AXES)
    with pytest.raises(ValueError, match="no axis 'rows'"):
        mesh.group("rows")  # type: ignore[arg-type]
