"""How the processes of a run are laid out: stages of the model, copies of the graph, parts of each copy.

Plain arithmetic on ranks, without torch: a launcher knows the layout before any process group exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Axis = Literal["all", "parts", "copies", "replicas", "stages"]
AXES: tuple[Axis, ...] = get_args(Axis)


class Place(NamedTuple):
    """What a process works on."""

    stage: int  # which layers of the model
    copy: int  # which copy of the graph
    part: int  # which rows of that copy


@dataclass(frozen=True)
class Layout:
    """How many stages, copies of the graph in each, and parts of each copy."""

    stages: int = 1
    copies: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        for name in ("stages", "copies", "parts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def size(self) -> int:
        """Processes in all."""
        return self.stages * self.copies * self.parts

    def rank(self, stage: int, copy: int, part: int) -> int:
        """The process at a place: parts of a copy are neighbours, then the copies of a stage."""
        return (stage * self.copies + copy) * self.parts + part

    def place(self, rank: int) -> Place:
        """Where a process stands: the inverse of `rank`."""
        stage, rest = divmod(rank, self.copies * self.parts)
        return Place(stage, *divmod(rest, self.parts))

    def sets(self, axis: Axis) -> list[tuple[int, ...]]:
        """The sets of processes along an axis, which together are the whole run; ranks ascend in each."""
        stages, copies, parts = range(self.stages), range(self.copies), range(self.parts)
        if axis == "all":
            return [tuple(range(self.size))]
        if axis == "parts":
            return [tuple(self.rank(s, c, p) for p in parts) for s in stages for c in copies]
        if axis == "copies":
            return [tuple(self.rank(s, c, p) for c in copies) for s in stages for p in parts]
        if axis == "replicas":
            return [tuple(self.rank(s, c, p) for c in copies for p in parts) for s in stages]
        if axis == "stages":
            return [tuple(self.rank(s, c, p) for s in stages) for c in copies for p in parts]
        raise ValueError(f"no axis {axis!r}; there are {', '.join(AXES)}")
