"""Runs that are shown together: names that tell them apart, and groups that differ by seed alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sancus.report.run_reader import RunFiles, number, section

NOT_COMPARED = {"output", "launch.timeout", "launch.threads", "training.seed", "preset"}
MOST_DIFFERENCES = 3
# What presets are made of: where the presets differ already, these say nothing new.
FACTORS = (
    "plan",
    "staleness",
    "backward",
    "codec",
    "backward_codec",
    "reuse_input",
    "order",
    "skip_input_gradient",
    "parameters",
)


@dataclass(frozen=True)
class RunGroup:
    """Runs with equal settings but for the seed, in the order in which they were given."""

    label: str
    runs: Sequence[RunFiles]

    @property
    def first(self) -> RunFiles:
        """The run that stands for the others where only one can be shown."""
        return self.runs[0]

    @property
    def seeds_text(self) -> str:
        """A remark for charts of `first`."""
        return f" The first of {len(self.runs)} seeds is shown." if len(self.runs) > 1 else ""

    def mean(self, figure: Callable[[RunFiles], float | None]) -> float | None:
        """The mean of a figure over the runs that have it; None where none has."""
        numbers = self.values(figure)
        return statistics.fmean(numbers) if numbers else None

    def values(self, figure: Callable[[RunFiles], float | None]) -> list[float]:
        """The figure of every run that has it."""
        return [value for value in map(figure, self.runs) if value is not None]


def group_runs(runs: Sequence[RunFiles]) -> list[RunGroup]:
    """Runs with equal settings together, each group with a name that no other has."""
    by_settings: dict[str, list[RunFiles]] = {}
    for place, files in enumerate(runs):
        settings = _settings(files)
        identity = json.dumps(settings, sort_keys=True, default=str) if settings else f"run {place}"
        by_settings.setdefault(identity, []).append(files)
    members = list(by_settings.values())
    return [
        RunGroup(name, group) for name, group in zip(_names([g[0] for g in members]), members, strict=True)
    ]


def _settings(files: RunFiles) -> dict[str, Any]:
    flat = _flatten(section(files.run, "config"))
    settings = {
        key: value for key, value in flat.items() if key.partition(".")[0] not in NOT_COMPARED | {"preset"}
    }
    settings = {key: value for key, value in settings.items() if key not in NOT_COMPARED}
    return settings | {"preset": flat.get("preset")} if flat else {}


def _flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """The preset; where that is not enough, the settings that differ; at last the directory."""
    settings = [_settings(files) for files in runs]
    presets = [str(flat.get("preset") or "") for flat in settings]
    keys = dict.fromkeys(key for flat in settings for key in flat if key != "preset")
    differing = [
        key for key in keys if len({json.dumps(flat.get(key), default=str) for flat in settings}) > 1
    ]
    names = []
    for files, flat, preset in zip(runs, settings, presets, strict=True):
        if not flat:
            names.append(files.directory.name or str(files.directory))
            continue
        alike = [other for other, name in zip(settings, presets, strict=True) if name == preset]
        distinguishing = [
            key for key in differing if len({json.dumps(o.get(key), default=str) for o in alike}) > 1
        ]
        also = [
            key for key in differing if key not in distinguishing and key.rpartition(".")[2] not in FACTORS
        ]
        keys_shown = (distinguishing + also)[:MOST_DIFFERENCES]
        words = [f"{key.rpartition('.')[2]} {flat.get(key)}" for key in keys_shown]
        names.append(" · ".join([preset or files.directory.name, *words]))
    if len(set(names)) == len(names):
        return names
    return [
        f"{name} · {files.directory.name}" if names.count(name) > 1 else name
        for name, files in zip(names, runs, strict=True)
    ]


def of_result(key: str) -> Callable[[RunFiles], float | None]:
    """The figure `result.<key>` of a run's `run.json`, as a function of the run."""
    return lambda files: number(section(files.run, "result").get(key))


def an_epoch(key: str) -> Callable[[RunFiles], float | None]:
    """The mean of a figure over the epochs of a run, as a function of the run; without epochs, the bill's."""

    def mean(files: RunFiles) -> float | None:
        numbers = [value for value in (number(epoch.get(key)) for epoch in files.epochs) if value is not None]
        if numbers:
            return statistics.fmean(numbers)
        bill = number(section(files.run, "communication", "per_epoch").get(key))
        return bill if bill is not None else number(section(files.run, "result").get(f"{key}_per_epoch"))

    return mean
