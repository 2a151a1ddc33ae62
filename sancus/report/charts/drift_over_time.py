"""Drift against its gap: how far owners' rows were from what the others hold, when they decided."""

from __future__ import annotations

import numpy as np

from sancus.report.ages import DIRECTIONS
from sancus.report.chart import Chart, Key, thinned_text, thinning
from sancus.report.charts.stream_lines import limit_line, measured_columns, measured_streams, stream_lines
from sancus.report.groups import RunGroup
from sancus.report.run_reader import number, section
from sancus.report.units import number_text, share_text


def drift_against_gap(group: RunGroup) -> list[Chart]:
    """A line a layer: the mean over owners, in a band from the least to the largest."""
    drift = group.first.drift
    if drift is None or not np.isfinite(drift).any():
        return []
    gaps = {side: _gap(group, name) for side, name in enumerate(DIRECTIONS)}
    size = thinning(len(drift))
    traces, legend = stream_lines(drift, size)
    table, words = [["", "mean", "largest", "above the gap"]], []
    for name, layer, side in measured_streams(drift):
        values = drift[:, layer, side]
        measurements, gap = values[np.isfinite(values)], gaps[side]
        above = None if gap is None else float((measurements > gap).mean())
        above_text = "–" if above is None else share_text(above)
        figures = (number_text(float(figure)) for figure in (measurements.mean(), measurements.max()))
        table.append([name, *figures, above_text])
        if above is not None:
            words.append(f"{name} passed its gap in {above_text} of the decisions")
    limits = list(dict.fromkeys(gap for gap in gaps.values() if gap is not None))
    text = "; ".join(words[:4]) or "No gap is known"
    return [
        Chart(
            "Drift against its gap",
            "What owners measured before they decided: mean of the owners, in a band from least to largest.",
            f"{text[:1].upper()}{text[1:]}.{group.seeds_text}{thinned_text(size)}",
            measured_columns(drift, "drift"),
            traces,
            {
                "xaxis": {"title": {"text": "epoch"}},
                "yaxis": {"title": {"text": "drift"}, "rangemode": "tozero"},
                "shapes": [limit_line(gap) for gap in limits],
            },
            [*legend, *(Key(f"gap {gap:g}", "ink", "dash") for gap in limits)],
            table,
        )
    ]


def _gap(group: RunGroup, side: str) -> float | None:
    return number(section(group.first.run, "communication", "policies", side).get("gap"))
