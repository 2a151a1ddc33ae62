"""What `sancus tune` tries: every preset of a full graph, and our own rows with other bits, ages and sums.

A candidate is settings over the user's own. `gnnpipe` is none: its accuracy is that of `exact`, and stages
are not estimated.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

EXACT = "exact"
PRESETS = (
    "lean",
    "cagnet",
    *(f"sancus-{kind}:{level}" for kind in "eah" for level in (1, 2, 3)),
    *(f"skipg:{level}" for level in (1, 3)),
    "pipegcn",
    "bns:0.1",
    "bns:0.5",
    "sylvie-s",
    "sylvie-a",
    "supergcn",
    "digest:10",
    "partition-only",
)
CODECS = {
    "int8": {"codec": "int8"},
    "int4": {"codec": "int4:tail=short"},
    "int2": {"codec": "int2:tail=short"},
    "int1": {"codec": "int1:tail=short"},
}
AGES = {
    "every 2nd epoch": "epoch-fixed:bound=1",
    "every 4th epoch": "epoch-fixed:bound=3",
    "every 10th epoch": "epoch-fixed:bound=9",
    "pipelined": "pipelined",
}
FEW_BITS_OF_SUMS = {"parameter_codec": "int8"}


@dataclass(frozen=True)
class Candidate:
    """Settings to try, and what they are called in tables and folders."""

    name: str
    settings: Mapping[str, str]

    def words(self) -> list[str]:
        """As flags of `sancus train`."""
        return [
            word for name, value in self.settings.items() for word in (f"--{name.replace('_', '-')}", value)
        ]

    @property
    def folder(self) -> str:
        """A name that any file system takes."""
        return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return shlex.join(self.words())


def reference() -> Candidate:
    """What all others are measured by."""
    return _made(EXACT, {"preset": EXACT})


def candidates() -> list[Candidate]:
    """All of them, without the reference; each name once."""
    return [
        *(_made(preset, {"preset": preset}) for preset in PRESETS),
        *(_made(name, {"preset": EXACT, **settings}) for name, settings in _compositions()),
    ]


def _made(name: str, settings: Mapping[str, str]) -> Candidate:
    return Candidate(name, MappingProxyType(dict(settings)))


def _compositions() -> Iterator[tuple[str, dict[str, str]]]:
    """Bits alone, ages alone, both, and each of the cheapest with sums of gradients in eight bits too."""
    for bits, codec in CODECS.items():
        yield bits, dict(codec)
        yield f"{bits}, sums in int8", {**codec, **FEW_BITS_OF_SUMS}
    for age, policy in AGES.items():
        old = {"staleness": policy, "backward": policy}
        yield age, old
        for bits in ("int8", "int4"):
            yield f"{age}, {bits}", {**old, **CODECS[bits]}
    yield "sums in int8", dict(FEW_BITS_OF_SUMS)
