"""What an experiment measured, for sentences: every number of a text is asked for here, by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.engine.experiment import REPEATS
from experiments.engine.figures import COLUMNS, FIGURES
from experiments.engine.results import RESULTS_FILE, describe, read

EXPERIMENTS = Path(__file__).parents[1]
BUSY = 10.0  # more processes than any experiment has
Labels = str | Sequence[str]
Case = Mapping[str, Any]


class Measured:
    """The content of a `results.json`, by figure and labels; a label may be one value or several."""

    def __init__(self, name: str, content: Mapping[str, Any]) -> None:
        self.name = name
        self.content = content

    @classmethod
    def of(cls, name: str) -> Measured:
        """What the experiment of that name measured."""
        return cls(name, read(EXPERIMENTS / name / RESULTS_FILE))

    def beside(self, name: str) -> Measured:
        """What another experiment measured."""
        return Measured.of(name)

    @property
    def machine(self) -> str:
        """Machine and date, as one phrase; that it was busy with other work, where it was."""
        busy = self.content.get("load", 0.0) > BUSY
        other = f", busy with other work (load {self.content['load']:.0f})" if busy else ""
        return f"{describe(self.content['machine'])}, {self.content['date']}{other}"

    @property
    def seeds(self) -> int:
        """How many repeats every case has."""
        return len({case["labels"].get(REPEATS) for case in self.content["cases"]})

    def cases(self, **labels: Labels) -> list[Case]:
        """All cases with these labels, every repeat."""
        allowed = {axis: [one] if isinstance(one, str) else list(one) for axis, one in labels.items()}
        return [
            case
            for case in self.content["cases"]
            if all(case["labels"][axis] in values for axis, values in allowed.items())
        ]

    def labels(self, axis: str, **labels: Labels) -> list[str]:
        """The values of an axis, in their order."""
        return list(dict.fromkeys(case["labels"][axis] for case in self.cases(**labels)))

    def each(self, figure: str, **labels: Labels) -> dict[tuple[str, ...], float]:
        """The figure of every combination of labels, over its repeats; those that lack it are left out."""
        groups: dict[tuple[str, ...], list[float | None]] = {}
        for case in self.cases(**labels):
            key = tuple(label for axis, label in case["labels"].items() if axis != REPEATS)
            groups.setdefault(key, []).append(case["figures"].get(figure))
        over = FIGURES[figure].over_repeats
        return {
            key: over([one for one in values if one is not None])
            for key, values in groups.items()
            if None not in values
        }

    def value(self, figure: str, **labels: Labels) -> float:
        """The figure of the one combination that these labels name."""
        values = list(self.each(figure, **labels).values())
        if len(values) != 1:
            raise LookupError(f"{self.name}: {len(values)} values of {figure} have the labels {labels}")
        return values[0]

    def show(self, figure: str, **labels: Labels) -> str:
        """The same, as a table shows it."""
        return FIGURES[figure].form(self.value(figure, **labels))

    def span(self, figure: str, **labels: Labels) -> str:
        """The least and the largest value among these labels."""
        values = list(self.each(figure, **labels).values())
        if not values:
            raise LookupError(f"{self.name}: no value of {figure} has the labels {labels}")
        return span(FIGURES[figure].form(min(values)), FIGURES[figure].form(max(values)))

    def columns(self, **labels: Labels) -> str:
        """What crosses in these cases, as a table shows it."""
        return "; ".join(dict.fromkeys(case[COLUMNS] for case in self.cases(**labels)))

    def flag(self, name: str, **labels: Labels) -> str:
        """A flag of `sancus train` that all these cases share."""
        cases = self.cases(**labels)
        values = {found[1] for case in cases if (found := re.search(rf"--{name} (\S+)", case["command"]))}
        if len(values) != 1:
            raise LookupError(f"{self.name}: the cases {labels} share no --{name}, but have {sorted(values)}")
        return values.pop()


def span(least: str, most: str) -> str:
    """`a to b`, or `a` where both are shown alike; a unit that both have is written once."""
    if least == most:
        return least
    shared = re.match(r"(.*\d)( ?[%×])$", least), re.match(r"(.*\d)( ?[%×])$", most)
    if shared[0] and shared[1] and shared[0][2] == shared[1][2]:
        least = shared[0][1]
    return f"{least} to {most}"


def count(number: float) -> str:
    """A whole number with its thousands apart: 1 272."""
    return f"{number:,.0f}".replace(",", " ")


def listing(parts: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
