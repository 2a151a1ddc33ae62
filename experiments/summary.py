"""RESULTS.md and its plots, from the `results.json` of all experiments: `python -m experiments.summary`."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.engine import results, tables
from experiments.engine.experiment import names, read

HERE = Path(__file__).parent
TOP = HERE.parent
HEADING = """# Results

Written by `python -m experiments.summary` from every `results.json` in the folders of
[experiments](experiments/README.md), which holds, beside each number, the command that gives it, the machine
and the date. What the papers say, and what agrees, is in the README of each folder."""


def promises(contents: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of promises: what must hold, and what was measured."""
    rows = [["promise", "measured"]]
    if "time_to_accuracy" in contents:
        for link in ("1 Gbit/s", "100 Mbit/s"):
            for preset, least in (("lean", "15"), ("exact", "5"), ("sancus-h:1", "1.34")):
                cells = _sooner(contents["time_to_accuracy"], preset, link)
                cell_text = "; ".join(f"{graph} {cell}" for graph, (_, cell) in cells.items())
                promise = "more"
                if link == "1 Gbit/s":
                    promise = f"{least} ×"
                    count = sum(times >= float(least) for times, _ in cells.values())
                    cell_text = f"on {count} of {len(cells)} graphs: {cell_text}"
                rows.append([f"{preset} sooner than cagnet over {link}: {promise}", cell_text])
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
    rows = []
    for task in dict.fromkeys(run["task"] for run in content["runs"]):
        runs = [run for run in content["runs"] if run["task"] == task]
        ours = [run for run in runs if run["who"] not in ("pyg", "dgl")]
        for who in ("pyg", "dgl"):
            theirs = [run for run in runs if run["who"] == who]
            if theirs:
                times = f"{_epoch(theirs) / _epoch(ours):.1f} × faster"
                memory = f"{_peak(ours) / _peak(theirs):.0%} of its peak memory"
                rows.append([f"{task}: exact, 2 ranks × 1 thread, beside {who}", f"{times}, {memory}"])
    return rows


def _epoch(runs: list[Mapping[str, Any]]) -> float:
    return statistics.median(second for run in runs for second in run["seconds"][1:])


def _peak(runs: list[Mapping[str, Any]]) -> float:
    return statistics.median(run["peak_bytes"] for run in runs)


def write(target: Path, *, plots: bool) -> None:
    """RESULTS.md in `target`, with `plots/` beside it."""
    contents = {
        path.parent.name: results.read(path) for path in sorted(HERE.glob(f"*/{results.RESULTS_FILE}"))
    }
    parts = [HEADING]
    if text := promises(contents):
        parts += ["## What must hold", text]
    for name, content in contents.items():
        head = f"{results.describe(content['machine'])}, {content['date']}: `{content['command']}`"
        parts += [f"## {content['title']}", f"{head} ([more](experiments/{name}/README.md))."]
        if plots and (picture := _plot(name, content, target)):
            parts.append(picture)
        if name in names(HERE):
            table = read(HERE / name, quick=False).tables[0]
            parts.append(tables.render(tables.make(table, content["cases"])))
    (target / "RESULTS.md").write_text("\n\n".join(part for part in parts if part) + "\n")


def _plot(name: str, content: Mapping[str, Any], target: Path) -> str:
    from experiments.plots import PLOTS, save

    if name not in PLOTS:
        return ""
    draw, size = PLOTS[name]
    path = Path("docs/plots") / f"{name}.svg"
    save(target / path, content, draw, size)
    return f"![{content['title']}]({path})"


def main() -> None:
    """Read the flags, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=TOP, help="folder of RESULTS.md and docs/plots")
    parser.add_argument("--no-plots", action="store_true", help="only the tables: needs no matplotlib")
    flags = parser.parse_args()
    if not flags.no_plots and importlib.util.find_spec("matplotlib") is None:
        parser.error("plots need matplotlib: pip install 'sancus[experiments]', or add --no-plots")
    write(flags.out, plots=not flags.no_plots)


if __name__ == "__main__":
    main()
