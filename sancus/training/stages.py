"""Which segments of a model each stage of a pipeline has, and so which parameters."""

from __future__ import annotations

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

    def owns(self, stage: int, name: str) -> bool:
        """Whether a stage has a parameter, or a buffer of a module; the first has what nobody uses."""
        if name in self.owner:
            return self.owner[name] == stage
        module = name.rpartition(".")[0]
        near = [owner for other, owner in self.owner.items() if other.rpartition(".")[0] == module]
        return stage == (near[0] if near else 0)


def split_evenly(pieces: Sequence[Piece], count: int) -> Stages:
    """Equally many graph layers for every stage; segments without any go with the layer before them."""
    layers = sum(bool(piece.layers) for piece in pieces)
    if count > layers:
        raise UserError(f"--stages {count}: the model has {layers} graph layers; a stage needs at least one")
    firsts, seen = [0], 0
    for place, piece in enumerate(pieces):
        if piece.layers:
            if seen * count // layers >= len(firsts):
                firsts.append(place)
            seen += 1
    return split_at(pieces, firsts)


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
