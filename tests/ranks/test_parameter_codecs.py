"""Sums of parameters over real transports: the same bits on every rank, and on gloo as on MPI."""

from __future__ import annotations

import torch

from sancus.comm.group import Group
from sancus.parameters import PARAMETER_CODECS
from sancus.training.parameter_sync import make_parameter_codec
from tests.helpers.processes import run_ranks

SPECS = [*PARAMETER_CODECS, "low-rank:rank=2,bits=8"]


def sums(group: Group) -> list[torch.Tensor]:
    """Two sums by every codec, one after the other, of tensors that differ between the ranks."""
    seen = []
    for spec in SPECS:
        codec = make_parameter_codec(spec)
        for call in range(2):
            drawn = torch.Generator().manual_seed(10 * call + group.rank)
            given = [torch.randn(shape, generator=drawn) for shape in ((33, 9), (9,), (9, 4))]
            seen += codec.sum(given, group, call)
    return seen


def test_every_codec_gives_the_same_bits_on_every_rank_and_transport() -> None:
    first, *others = [
        result
        for backend in ("gloo", "mpi")
        for result in run_ranks("tests.ranks.test_parameter_codecs:sums", 3, backend=backend)
    ]
    assert len(first) == len(SPECS) * 2 * 3
    for other in others:
        assert all(ours.equal(theirs) for ours, theirs in zip(first, other, strict=True))
