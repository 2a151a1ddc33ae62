"""Which segments of a model each stage of a pipeline has, and so which parameters."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sancus.errors import UserError
from sancus.models.trace import Piece


@dataclass(frozen=True)
class Stages:
    """Consecutive segments for every stage."""

    segments: Sequence[slice]  # [S]
    columns: Sequence[tuple[int, ...]]  # [S] of the tensors that each stage hands on; the last gives logits
    layers: Sequence[frozenset[int]]  # [S] the numbers of each stage's graph layers
    owner: Mapping[str, int]  # the stage of every parameter that a segment uses, by name
    carried: frozenset[int] = frozenset()  # places of tensors that every stage makes by the first segment
    shared: frozenset[str] = frozenset()  # the parameters of that segment, which all stages have then

    def owns(self, stage: int, name: str) -> bool:
        """Whether a stage has a parameter, or a buffer of a module; the first has what nobody uses."""
        if name in self.shared:
            return True
        if name in self.owner:
            return self.owner[name] == stage
        module = name.rpartition(".")[0]
        near = [owner for other, owner in self.owner.items() if other.rpartition(".")[0] == module]
        return stage == (near[0] if near else 0)


def split_evenly(pieces: Sequence[Piece], count: int) -> Stages:
    """Equally many graph layers for every stage; segments without any go with the layer before them."""
    layers = _layers(pieces, count)
    return split_at(pieces, [0, *(layers[-(-stage * len(layers) // count)] for stage in range(1, count))])


def split_by_cost(pieces: Sequence[Piece], count: int, costs: Sequence[float]) -> Stages:
    """Stages whose dearest is as cheap as can be; `costs` are of the segments, in any unit.

    Each has a graph layer at least.
    """
    layers = _layers(pieces, count)
    starts = [0, *layers[1:]]
    sums = [0.0, *itertools.accumulate(costs)]
    ends = [*starts[1:], len(pieces)]
    best: dict[int, tuple[float, list[int]]] = {
        end: (sums[ends[end]] - sums[0], [0]) for end in range(len(starts))
    }  # by the last layer that is covered: the dearest stage, and where stages begin
    for stage in range(1, count):
        best = {end: _cheapest(best, stage, end, starts, ends, sums) for end in range(stage, len(starts))}
    return split_at(pieces, best[len(starts) - 1][1])


def _cheapest(
    best: Mapping[int, tuple[float, list[int]]],
    stage: int,
    end: int,
    starts: Sequence[int],
    ends: Sequence[int],
    sums: Sequence[float],
) -> tuple[float, list[int]]:
    """One more stage, up to the layer `end`: the dearest of all, and where they begin."""
    return min(
        (max(best[begin - 1][0], sums[ends[end]] - sums[starts[begin]]), [*best[begin - 1][1], starts[begin]])
        for begin in range(stage, end + 1)
    )


def with_first(split: Stages, pieces: Sequence[Piece]) -> Stages:
    """The same stages, each of which makes what all segments hand on as the first one has made it."""
    last = max(place for place, piece in enumerate(pieces) if piece.layers)
    carried = frozenset(range(len(pieces[0].columns))).intersection(
        *(piece.passes for piece in pieces[1 : last + 1])
    )
    if pieces[0].layers or not carried:
        raise UserError(
            "--recompute-first: no tensor that the first segment makes goes through all layers as it is "
            "(only gcnii of our models has one); leave it out"
        )
    columns = [
        tuple(width for place, width in enumerate(widths) if place not in carried)
        for widths in split.columns[:-1]
    ]
    return dataclasses.replace(
        split, columns=[*columns, split.columns[-1]], carried=carried, shared=pieces[0].parameters
    )


def _layers(pieces: Sequence[Piece], count: int) -> list[int]:
    """The places of segments with graph layers, of which every one of `count` stages needs one."""
    layers = [place for place, piece in enumerate(pieces) if piece.layers]
    if count > len(layers):
        raise UserError(
            f"--stages {count}: the model has {len(layers)} graph layers; a stage needs at least one"
        )
    return layers


def split_at(pieces: Sequence[Piece], firsts: Sequence[int]) -> Stages:
    """Stages that begin with the segments `firsts`; a parameter of two stages is refused."""
    segments = [slice(*pair) for pair in itertools.pairwise([*firsts, len(pieces)])]
    owner: dict[str, int] = {}
    for stage, part in enumerate(segments):
        for name in sorted(frozenset().union(*(piece.parameters for piece in pieces[part]))):
            if owner.setdefault(name, stage) != stage:
                raise UserError(
                    f"--stages {len(segments)}: stages {owner[name]} and {stage} would share the parameter "
                    f"{name}; choose fewer stages"
                )
    return Stages(
        segments,
        [pieces[part.stop - 1].columns for part in segments],
        [frozenset().union(*(piece.layers for piece in pieces[part])) for part in segments],
        owner,
    )
