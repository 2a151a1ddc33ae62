"""RESULTS.md and its plots, from the `results.json` of all experiments: `python -m experiments.summary`."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.engine import results, tables
from experiments.engine.experiment import SETTINGS_FILE, read
from experiments.engine.measured import Measured
from experiments.gnnpipe_depth import findings as depths
from experiments.guards import findings as guards
from experiments.kernels import findings as kernels
from experiments.peers import findings as peers
from experiments.supergcn_ranks import findings as ranks

HERE = Path(__file__).parent
TOP = HERE.parent
FILE, LINK = "RESULTS.md", "1 Gbit/s"
TABLES = {
    "peers": peers.table,
    "supergcn_ranks": ranks.table,
    "gnnpipe_depth": depths.table,
    "kernels": kernels.table,
    "guards": guards.table,
}  # of those that the engine does not run
PICTURES = (
    *("time_to_accuracy", "peers", "factors", "sancus_table5", "sancus_figure21", "sancus_figure24"),
    *("sylvie_figure9",),
)
HEADING = """# Results

Written by `python -m experiments.summary` from every `results.json` in the folders of
[experiments](experiments/README.md), which holds, beside each number, the command that gives it, the machine
and the date. What the papers say, and what agrees, is in the README of each folder."""


def promises(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of promises: what must hold, and what was measured."""
    rows = [["promise", "measured"]]
    if "time_to_accuracy" in contents:
        for preset, least in (("lean", "15"), ("exact", "5"), ("sancus-h:1", "1.34")):
            cells = _sooner(contents["time_to_accuracy"], preset, LINK)
            count = sum(times >= float(least) for times, _ in cells.values())
            text = "; ".join(f"{graph} {cell}" for graph, (_, cell) in cells.items())
            promise = f"{preset} sooner than cagnet over {LINK}: {least} ×"
            rows.append([promise, f"on {count} of {len(cells)} graphs: {text}"])
    if "peers" in contents:
        rows += _peers(contents["peers"])
    return tables.render(rows) if len(rows) > 1 else ""


def _sooner(content: Mapping[str, Any], preset: str, link: str) -> dict[str, tuple[float, str]]:
    """For every graph of a link rate the median over repeats (0: not reached in each), and its cell."""
    cells = {}
    for graph in dict.fromkeys(case["labels"]["graph"] for case in content["cases"]):
        cases = [case for case in content["cases"] if case["labels"]["graph"] == graph]
        mine = [case for case in cases if case["labels"]["preset"] == preset]
        if graph.endswith(link) and mine:
            times = [case["figures"]["sooner"] for case in mine]
            median = 0.0 if None in times else statistics.median(times)
            cells[graph.partition(",")[0]] = median, tables.cell(mine, "sooner")
    return cells


def _peers(content: Mapping[str, Any]) -> list[list[str]]:
    """Epochs and memory of every peer as multiples of ours."""
    measured = Measured("peers", content)
    rows = []
    for task in peers.tasks(measured):
        ours = peers.runs(measured, task, peers.OURS)
        for peer, name in peers.PEERS.items():
            if theirs := peers.runs(measured, task, peer):
                times = f"{peers.epoch(theirs) / peers.epoch(ours):.1f} × faster"
                memory = f"{peers.memory(ours) / peers.memory(theirs):.0%} of its peak memory"
                rows.append([f"{task}: exact, 2 ranks × 1 thread, beside {name}", f"{times}, {memory}"])
    return rows


def text() -> str:
    """The whole of RESULTS.md."""
    contents = {
        path.parent.name: results.read(path) for path in sorted(HERE.glob(f"*/{results.RESULTS_FILE}"))
    }
    parts = [HEADING]
    if table := promises(contents):
        parts += ["## What must hold", table]
    for name, content in contents.items():
        head = f"{results.describe(content['machine'])}, {content['date']}: `{content['command']}`"
        parts += [f"## {content['title']}", f"{head} ([more](experiments/{name}/README.md))."]
        if name in PICTURES:
            parts.append(f"![{content['title']}]({_picture(name)})")
        if (HERE / name / SETTINGS_FILE).is_file():
            table = tables.render(tables.make(read(HERE / name, quick=False).tables[0], content["cases"]))
            parts.append(table)
        elif name in TABLES:
            parts.append(TABLES[name](Measured(name, content)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _picture(name: str) -> Path:
    return Path("docs/plots") / f"{name}.svg"


def draw(target: Path) -> None:
    """The plots that RESULTS.md shows, under `target`."""
    from experiments.plots import PLOTS, save

    assert set(PLOTS) == set(PICTURES)
    for name, (plot, size) in PLOTS.items():
        path = HERE / name / results.RESULTS_FILE
        if path.exists():
            save(target / _picture(name), results.read(path), plot, size)


def main() -> None:
    """Read the flags, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TOP, help="folder of RESULTS.md and docs/plots")
    parser.add_argument("--no-plots", action="store_true", help="only the tables: needs no matplotlib")
    flags = parser.parse_args()
    if not flags.no_plots and importlib.util.find_spec("matplotlib") is None:
        parser.error("plots need matplotlib: pip install 'sancus[experiments]', or add --no-plots")
    (flags.out / FILE).write_text(text())
    if not flags.no_plots:
        draw(flags.out)


if __name__ == "__main__":
    main()
