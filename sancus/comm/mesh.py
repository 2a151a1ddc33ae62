"""The mesh: the processes of a run along named axes, and the group of each axis.

What a process works on has three coordinates: its *stage* (which layers of the model), its *copy* (which copy
of the graph) and its *part* (which rows of that copy). From these follow the sets of processes that act
together:

| axis | the processes of |
|---|---|
| `all` | the whole run: health, consensus |
| `parts` | one copy of one stage: they share the rows of a graph, and exchange them |
| `copies` | one part of one stage, in every copy: they may share the work on the same rows |
| `replicas` | one stage: they hold the same parameters, and sum their gradients |
| `stages` | one part of one copy: they hand activations on |

    mesh = Mesh(world, Layout(stages=2, copies=1, parts=2))
    mesh.group("parts").all_gather(tensor)

Where an axis spans the whole run its group is the world's own; elsewhere it has connections of its own, and a
group of one process exchanges no message. All groups of a process share ledger, observer and clock.
"""

from __future__ import annotations

from sancus.comm.alone import Alone
from sancus.comm.group import Group
from sancus.comm.layout import AXES, Axis, Layout
from sancus.comm.transport import Transport


class Mesh:
    """The groups of one process; made by all processes of the run together."""

    def __init__(self, world: Group, layout: Layout) -> None:
        """`world` is the group of all processes, `layout` where each of them stands."""
        if layout.size != world.size:
            raise ValueError(
                f"{layout.stages} stages x {layout.copies} copies x {layout.parts} parts are {layout.size} "
                f"processes, but the run has {world.size}"
            )
        self.layout = layout
        self.place = layout.place(world.rank)  # of this process
        self._groups: dict[Axis, Group] = {}
        groups: dict[tuple[int, ...], Group | None] = {tuple(range(world.size)): world}
        for axis in AXES:
            for members in layout.sets(axis):
                if members not in groups:  # the same on all processes, so that all make them in one order
                    groups[members] = _split(world, axis, members)
                group = groups[members]
                if group is not None:
                    self._groups[axis] = group

    def group(self, axis: Axis) -> Group:
        """The group of this process along an axis."""
        if axis not in self._groups:
            raise ValueError(f"no axis {axis!r}; there are {', '.join(AXES)}")
        return self._groups[axis]


def _split(world: Group, name: str, members: tuple[int, ...]) -> Group | None:
    """The group of some processes, at the desk of the world's; None for a process outside."""
    transport: Transport | None = Alone() if members == (world.rank,) else None
    if len(members) > 1:
        transport = world.transport.split(members)
    return None if transport is None else Group(transport, name, members, world.desk)
