"""An experiment: a folder with `experiment.toml`, whose axes span the cases to train.

title = "SANCUS Table 5"
turn = 1                      # its place in `all`: what matters most comes first
[common]                      # flags of `sancus train`, for every case
epochs = 60
[axes]                        # every combination is one case
data = ["amazon-computers"]
link = ["1gbit", "100mbit"]   # rate of every rank's link; "none": ranks talk over loopback
preset = ["cagnet", "lean"]
seed = [0, 1]                 # the repeats: outermost, so that what is compared is interleaved
[axes.setting]                # an axis of named sets of flags
"int2" = { codec = "int2" }
[[tables]]
rows = ["link", "preset"]
figures = ["seconds", "speedup"]
baseline = { preset = "cagnet" }  # of the experiment; `score` names another one for accuracy
[[also]]                      # more cases, of other values on some of these axes; not part of `--quick`
ranks = [2, 8]
[quick.axes]                  # what `--quick` replaces
seed = [0]
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sancus.errors import UserError

NO_LINK = "none"
REPEATS = "seed"
SETTINGS_FILE = "experiment.toml"
LAST = 99  # the turn of an experiment that names none
PLACE = {"data": "synthetic", "link": NO_LINK, "ranks": 4, "launcher": "mpiexec"}


@dataclass(frozen=True)
class Place:
    """What a group of ranks must share: cases of one place train one after another in one group."""

    ranks: int
    link: str
    launcher: str


@dataclass(frozen=True)
class Case:
    """One training run."""

    labels: dict[str, str]  # axis → the value that the tables show
    data: str
    place: Place
    flags: dict[str, Any]

    def command(self) -> str:
        """The command line that trains this case by hand."""
        flags = {"ranks": self.place.ranks} | self.flags
        words = [f"--{name.replace('_', '-')} {_text(value)}" for name, value in flags.items()]
        return f"sancus train {self.data} " + " ".join(words)


@dataclass(frozen=True)
class Table:
    """Which figures to show, of which cases."""

    rows: Sequence[str]
    figures: Sequence[str]
    across: str | None = None  # an axis whose values become columns
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    caption: str = ""


@dataclass(frozen=True)
class Experiment:
    """What to run and what to show of it."""

    name: str
    title: str
    cases: Sequence[Case]
    tables: Sequence[Table]
    baseline: Mapping[str, str]  # labels of the cases that others are compared with
    tolerance: float  # a score counts as reached this much below the baseline's best
    raster: bool  # keep the decisions of every epoch
    score: Mapping[str, str] = field(default_factory=dict)  # the baseline of accuracy, where it is another


def read(folder: Path, *, quick: bool) -> Experiment:
    """The experiment of a folder; `quick` takes its small form."""
    path = folder / SETTINGS_FILE
    if not path.is_file():
        raise UserError(f"{folder} holds no {SETTINGS_FILE}; choose from {', '.join(names(folder.parent))}")
    content = tomllib.loads(path.read_text())
    small = content.get("quick", {}) if quick else {}
    common = content.get("common", {}) | small.get("common", {})
    axes = content["axes"] | small.get("axes", {})
    others = [] if quick else content.get("also", [])
    return Experiment(
        folder.name,
        content["title"],
        [case for more in ({}, *others) for case in _cases(common, axes | more)],
        [Table(**table) for table in content["tables"]],
        content.get("baseline", {}),
        content.get("tolerance", 0.0),
        content.get("raster", False),
        content.get("score", {}),
    )


def names(parent: Path) -> list[str]:
    """The names of all experiments in a folder, what matters most first."""
    turns = {
        path.parent.name: tomllib.loads(path.read_text()).get("turn", LAST)
        for path in parent.glob(f"*/{SETTINGS_FILE}")
    }
    return sorted(turns, key=lambda name: (turns[name], name))


def _cases(common: Mapping[str, Any], axes: Mapping[str, Any]) -> list[Case]:
    """Every combination, repeats outermost."""
    axis_names = sorted(axes, key=lambda axis: axis != REPEATS)
    choices = [[(axis, *choice) for choice in _choices(axis, axes[axis])] for axis in axis_names]
    cases = []
    for combination in itertools.product(*choices):
        settings = dict(PLACE) | dict(common)
        for _, _, flags in combination:
            settings |= flags
        data, link, ranks, launcher = (settings.pop(name) for name in PLACE)
        labels = {axis: label for axis, label, _ in combination}
        cases.append(Case(labels, str(data), Place(int(ranks), str(link), str(launcher)), settings))
    return cases


def _choices(axis: str, values: Any) -> list[tuple[str, dict[str, Any]]]:
    """(label, flags) of every value: a list sets the flag of the axis' name, a table names sets of flags.

    A table with `of` and `sizes` is every combination of so many named sets.
    """
    if isinstance(values, Mapping) and set(values) == {"of", "sizes"}:
        return _combinations(values["of"], values["sizes"])
    if isinstance(values, Mapping):
        return [(label, dict(flags)) for label, flags in values.items()]
    return [(str(value), {axis: value}) for value in values]


def _combinations(
    parts: Mapping[str, Mapping[str, Any]], sizes: Sequence[int]
) -> list[tuple[str, dict[str, Any]]]:
    """Every union of `size` named sets of flags, for each of the sizes; none of them is called `nothing`."""
    unions = []
    for names in (some for size in sizes for some in itertools.combinations(parts, size)):
        flags: dict[str, Any] = {}
        for name in names:
            flags |= parts[name]
        unions.append((" + ".join(names) or "nothing", flags))
    return unions


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
