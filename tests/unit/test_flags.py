"""The frozen list of verbs and flags: scripts of users hold them, so that none goes or is renamed unnoticed.

A flag that was added: add its line to `tests/unit/flags.txt`, in order; the failing test prints the lines.
One that was taken away or renamed: that breaks somebody's script. Keep the old spelling working, or say under
*Unreleased* in `CHANGELOG.md` that it is gone, and take its line out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cyclopts import App

from sancus.cli.app import app

FROZEN = Path(__file__).with_name("flags.txt")


def flags(app: App, *verbs: str) -> Iterator[str]:
    """`train`, `train --epochs`, …: a line for every verb and for every spelling of its flags."""
    for name in app:
        if name.startswith("-"):
            continue
        verb = app[name]
        yield " ".join([*verbs, name])
        if verb.default_command is None:
            yield from flags(verb, *verbs, name)
            continue
        for argument in verb.assemble_argument_collection(parse_docstring=False):
            if argument.show:
                for spelling in argument.names:
                    yield " ".join([*verbs, name, spelling])


def test_verbs_and_flags_are_those_of_the_list() -> None:
    frozen, ours = FROZEN.read_text().splitlines(), sorted(flags(app))
    gone, new = sorted(set(frozen) - set(ours)), sorted(set(ours) - set(frozen))
    assert not gone, f"no longer there: {gone}; see {Path(__file__).name}"
    assert not new, f"new: add to {FROZEN.name}: {new}"
    assert frozen == ours, f"{FROZEN.name} is not in order"


def test_the_list_is_not_empty_handed() -> None:
    frozen = FROZEN.read_text().splitlines()
    assert {"train", "train --epochs", "train --staleness", "compare", "report", "data info"} <= set(frozen)
