"""Drift against its gap: how far owners' rows were from what the others hold, when they decided."""

from __future__ import annotations

from typing import Any

import numpy as np

from sancus.report.ages import DIRECTIONS
from sancus.report.chart import Chart, Key, colour, thin, thinned_text, thinning
from sancus.report.groups import RunGroup
from sancus.report.run_reader import number, section
from sancus.report.units import number_text, share_text


def drift_against_gap(group: RunGroup) -> list[Chart]:
    """A line a layer: the mean over owners, in a band from the least to the largest."""
    drift = group.first.drift
    if drift is None or not np.isfinite(drift).any():
        return []
    layers = range(drift.shape[1])
    streams = [
        (layer, side) for side in (0, 1) for layer in layers if np.isfinite(drift[:, layer, side]).any()
    ]
    gaps = {side: _gap(group, name) for side, name in enumerate(DIRECTIONS)}
    size = thinning(len(drift))
    epochs: list[float | None] = [float(epoch) for epoch in range(len(drift))]
    traces: list[dict[str, Any]] = []
    legend, table, words = [], [["", "mean", "largest", "above the gap"]], []
    for place, (layer, side) in enumerate(streams):
        values = drift[:, layer, side]
        name = f"layer {layer} {DIRECTIONS[side]}"
        low, mean, high = (thin(_over_owners(values, how), size) for how in (np.min, np.mean, np.max))
        edge = {"type": "scatter", "mode": "lines", "x": thin(epochs, size), "line": {"width": 0}}
        legend.append(Key(name, f"s{place % 8}", "line", tuple(range(len(traces), len(traces) + 3))))
        traces += [
            edge | {"y": low, "hoverinfo": "skip"},
            edge | {"y": high, "hoverinfo": "skip", "fill": "tonexty", "fillcolor": colour(f"b{place % 8}")},
            edge
            | {
                "y": mean,
                "line": {"color": colour(f"s{place % 8}"), "width": 2},
                "hovertemplate": f"{name}, epoch %{{x:.0f}}: %{{y:.3~g}}<extra></extra>",
            },
        ]
        measurements, gap = values[np.isfinite(values)], gaps[side]
        above = None if gap is None else float((measurements > gap).mean())
        above_text = "–" if above is None else share_text(above)
        table.append(
            [
                name,
                number_text(float(measurements.mean())),
                number_text(float(measurements.max())),
                above_text,
            ]
        )
        if above is not None:
            words.append(f"{name} passed its gap in {above_text} of the decisions")
    shapes = []
    for gap in dict.fromkeys(gap for gap in gaps.values() if gap is not None):
        line = {"color": colour("ink"), "width": 1.5, "dash": "dash"}
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": gap, "y1": gap, "line": line})
        legend.append(Key(f"gap {gap:g}", "ink", "dash"))
    text = "; ".join(words[:4]) or "No gap is known"
    return [
        Chart(
            "Drift against its gap",
            "What owners measured before they decided: mean of the owners, in a band from least to largest.",
            f"{text[:1].upper()}{text[1:]}.{group.seeds_text}{thinned_text(size)}",
            _columns(drift),
            traces,
            {
                "xaxis": {"title": {"text": "epoch"}},
                "yaxis": {"title": {"text": "drift"}, "rangemode": "tozero"},
                "shapes": shapes,
            },
            legend,
            table,
        )
    ]


def _gap(group: RunGroup, side: str) -> float | None:
    return number(section(group.first.run, "communication", "policies", side).get("gap"))


def _over_owners(values: Any, how: Any) -> list[float | None]:
    """One number an epoch; none where no owner measured."""
    rows = [row[np.isfinite(row)] for row in values]
    return [float(how(row)) if row.size else None for row in rows]


def _columns(drift: Any) -> dict[str, list[Any]]:
    epoch, layer, side, owner = np.argwhere(np.isfinite(drift)).T
    return {
        "epoch": epoch.tolist(),
        "layer": layer.tolist(),
        "direction": [DIRECTIONS[place] for place in side.tolist()],
        "owner": owner.tolist(),
        "drift": [float(f"{value:.6g}") for value in drift[np.isfinite(drift)].tolist()],
    }
