"""The plots of RESULTS.md as SVG, from results alone. Needs matplotlib: extra `experiments`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Results = Mapping[str, Any]
COMPUTE, COMMUNICATE, SEND = "#4c78a8", "#f58518", "#333333"


def save(
    path: Path, results: Results, draw: Callable[[Axes, Results], None], size: tuple[float, float]
) -> None:
    """Draw one plot; the same results give the same file."""
    matplotlib.rcParams["svg.hashsalt"] = "sancus"
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    draw(axes, results)
    axes.set_title(results["title"], fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def sooner(axes: Axes, results: Results) -> None:
    """How many times sooner each preset reaches the accuracy of cagnet, a group of bars a graph and link."""
    graphs, presets = (_labels(results, axis) for axis in ("graph", "preset"))
    width = 0.8 / (len(presets) - 1)
    for place, preset in enumerate(presets[1:]):
        values = [_median(results, "sooner", graph=graph, preset=preset) for graph in graphs]
        at = [group + (place - (len(presets) - 2) / 2) * width for group in range(len(graphs))]
        bars = axes.bar(at, [value or 0 for value in values], width, label=preset)
        axes.bar_label(bars, [f"{value:.0f}×" if value else "not" for value in values], fontsize=7)
    axes.set_xticks(range(len(graphs)), [graph.replace(", ", "\n") for graph in graphs], fontsize=7)
    axes.set_yscale("log")
    axes.set_ylabel("times sooner than cagnet")
    axes.axhline(1, color="grey", linewidth=0.5)
    axes.legend(fontsize=8)


def split(axes: Axes, results: Results) -> None:
    """Compute and communication of an epoch, as shares of the baseline's, one bar a case."""
    rows = [axis for axis in results["cases"][0]["labels"] if axis != results["repeats"]]
    keys = list(dict.fromkeys(tuple(case["labels"][axis] for axis in rows) for case in results["cases"]))
    compute, communicate = (
        [_median(results, name, **dict(zip(rows, key, strict=True))) or 0 for key in keys]
        for name in ("compute_seconds", "comm_seconds")
    )
    axes.bar(range(len(keys)), compute, color=COMPUTE, label="compute")
    axes.bar(range(len(keys)), communicate, bottom=compute, color=COMMUNICATE, label="communicate")
    axes.set_xticks(range(len(keys)), [", ".join(key) for key in keys], fontsize=6, rotation=60, ha="right")
    axes.set_ylabel("seconds an epoch")
    axes.legend(fontsize=8)


def raster(axes: Axes, results: Results) -> None:
    """A dot for every epoch in which an owner sent its hidden embeddings, one line an owner."""
    place, ticks = 0, []
    for case in results["cases"]:
        owners = [
            answers for stream, answers in case["sent"].items() if stream.startswith("layer 1, forward")
        ]
        ticks.append((place + len(owners) / 2 - 0.5, case["labels"]["preset"]))
        for answers in owners:
            epochs = [epoch for epoch, answer in enumerate(answers) if answer == "1"]
            axes.plot(epochs, [place] * len(epochs), ".", color=SEND, markersize=2)
            place += 1
        place += 1
    axes.set_yticks([tick for tick, _ in ticks], [name for _, name in ticks], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("epoch")


def bytes_and_points(axes: Axes, results: Results) -> None:
    """Bytes avoided against points lost, one dot a combination of factors."""
    for data in _labels(results, "data"):
        combinations = _labels(results, "factors")
        fewer = [_median(results, "fewer", data=data, factors=some) or 1 for some in combinations]
        points = [_median(results, "points", data=data, factors=some) or 0 for some in combinations]
        axes.plot(fewer, points, "o", markersize=4, label=data)
        for x, y, name in zip(fewer, points, combinations, strict=True):
            if " + " not in name or name.count(" + ") > 1:
                axes.annotate(
                    name if name.count(" + ") < 2 else "all",
                    (x, y),
                    fontsize=6,
                    xytext=(3, 3),
                    textcoords="offset points",
                )
    axes.set_xscale("log")
    axes.set_xlabel("times fewer payload bytes than cagnet")
    axes.set_ylabel("points to cagnet")
    axes.legend(fontsize=8)


def peers(axes: Axes, results: Results) -> None:
    """Seconds of an epoch by everyone."""
    tasks, programs = (list(dict.fromkeys(run[name] for run in results["runs"])) for name in ("task", "who"))
    width = 0.8 / len(programs)
    for place, who in enumerate(programs):
        runs = [
            [run for run in results["runs"] if (run["task"], run["who"]) == (task, who)] for task in tasks
        ]
        values = [statistics.median(second for run in some for second in run["seconds"][1:]) for some in runs]
        at = [group + (place - (len(programs) - 1) / 2) * width for group in range(len(tasks))]
        axes.bar_label(
            axes.bar(at, values, width, label=who), [f"{value:.2g} s" for value in values], fontsize=7
        )
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set_yscale("log")
    axes.set_ylabel("seconds an epoch")
    axes.legend(fontsize=8)


PLOTS: dict[str, tuple[Callable[[Axes, Results], None], tuple[float, float]]] = {
    "time_to_accuracy": (sooner, (9, 4)),
    "peers": (peers, (6, 3.5)),
    "factors": (bytes_and_points, (8, 4.5)),
    "sancus_table5": (split, (7, 4)),
    "sancus_figure21": (split, (9, 4.5)),
    "sancus_figure24": (raster, (8, 5)),
    "sylvie_figure9": (split, (7, 4)),
}


def _labels(results: Results, axis: str) -> Sequence[str]:
    return list(dict.fromkeys(case["labels"][axis] for case in results["cases"]))


def _median(results: Results, figure: str, **labels: str) -> float | None:
    """Over the repeats of the cases with these labels; None where one has no value."""
    values = [
        case["figures"].get(figure)
        for case in results["cases"]
        if all(case["labels"][axis] == label for axis, label in labels.items())
    ]
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers and len(numbers) == len(values) else None
