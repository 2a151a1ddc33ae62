"""Results on disk: `results.json` of an experiment, with machine, date and commands beside every number."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.engine.experiment import REPEATS, Experiment
from experiments.engine.figures import COLUMNS, Values, columns_text, own_figures, relative_figures
from sancus.comm.ledger import DIRECTIONS
from sancus.launch.world import cores
from sancus.runs.directory import cpu_name, versions, write_json

RESULTS_FILE = "results.json"
DIGITS = 6
SCORES = {"points", "target", "epochs_to_target", "seconds_to_target", "sooner"}


def machine() -> dict[str, Any]:
    """CPU, cores, memory and kernel of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
    }


def describe(machine: Mapping[str, Any]) -> str:
    """A machine as one line of text."""
    return f"{machine['cores']}-core {machine['cpu']}, {machine['memory_gb']:.0f} GB"


def heading(command: str) -> dict[str, Any]:
    """What every results file begins with."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    load = round(os.getloadavg()[0], 1)  # of the last minute: what else ran shows in seconds, not in bytes
    return {"command": command, "machine": machine(), "date": date, "load": load, "versions": versions()}


def summarise(experiment: Experiment, outcomes: Sequence[Mapping[str, Any]], command: str) -> dict[str, Any]:
    """The figures of all cases, those beside the baseline included."""
    labels = [case.labels for case in experiment.cases]
    own = [own_figures(one) for one in outcomes]
    rows = []
    for number, case in enumerate(experiment.cases):
        figures: Values = dict(own[number])
        for baseline, chosen in ((experiment.baseline, None), (experiment.score, SCORES)):
            base_labels = case.labels | dict(baseline)
            if baseline and base_labels in labels:
                base = labels.index(base_labels)
                relative = relative_figures(
                    outcomes[number], own[number], outcomes[base], own[base], experiment.tolerance
                )
                figures |= {name: value for name, value in relative.items() if not chosen or name in chosen}
        row = {"labels": case.labels, "link": case.place.link, "ranks": case.place.ranks}
        row |= {"launcher": case.place.launcher, "command": case.command()}
        row |= {COLUMNS: columns_text(outcomes[number]["widths"]), "figures": _round(figures)}
        if experiment.raster:
            row["sent"] = raster(outcomes[number]["decisions"])
        rows.append(row)
    return heading(command) | {"title": experiment.title, "repeats": REPEATS, "cases": rows}


def raster(decisions: Sequence[Any]) -> dict[str, str]:
    """`{"layer 1, forward, owner 0": "1010…"}` of decisions `[epochs, layers, directions, owners]`; 1: sent.

    An epoch without a use is a dash; a stream that is never used is left out.
    """
    array = np.array(decisions, np.int64)
    streams = {}
    for layer, side, owner in np.ndindex(array.shape[1:]):
        text = "".join("-" if answer < 0 else str(answer) for answer in array[:, layer, side, owner])
        if text.strip("-"):
            streams[f"layer {layer}, {DIRECTIONS[side]}, owner {owner}"] = text
    return streams


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a results file in one step, so that a crash leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def read(path: Path) -> dict[str, Any]:
    """The content of a results file."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _round(figures: Values) -> Values:
    return {name: None if value is None else float(f"{value:.{DIGITS}g}") for name, value in figures.items()}
