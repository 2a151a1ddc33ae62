"""Lines of what owners measured, one a layer and direction, in a band from the least owner to the largest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.report.ages import DIRECTIONS
from sancus.report.chart import Key, colour, thin

Measured = npt.NDArray[np.float32]  # [epochs, layers, 2, owners]; NaN where nothing was measured


def measured_streams(values: Measured) -> list[tuple[str, int, int]]:
    """Name, layer and side of every stream that was ever measured: forward first, lowest layers first."""
    return [
        (f"layer {layer} {DIRECTIONS[side]}", layer, side)
        for side in (0, 1)
        for layer in range(values.shape[1])
        if np.isfinite(values[:, layer, side]).any()
    ]


def stream_lines(values: Measured, size: int) -> tuple[list[dict[str, Any]], list[Key]]:
    """Traces and legend; `size` neighbouring epochs become one point."""
    epochs = thin([float(epoch) for epoch in range(len(values))], size)
    traces: list[dict[str, Any]] = []
    legend = []
    for place, (name, layer, side) in enumerate(measured_streams(values)):
        column = values[:, layer, side]
        low, mean, high = (thin(_over_owners(column, how), size) for how in (np.min, np.mean, np.max))
        edge = {
            "type": "scatter",
            "mode": "lines",
            "x": epochs,
            "line": {"width": 0},
            "connectgaps": True,
        }
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
    return traces, legend


def limit_line(value: float) -> dict[str, Any]:
    """A dashed line across the chart."""
    line = {"color": colour("ink"), "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value, "line": line}


def measured_columns(values: Measured, name: str) -> dict[str, list[Any]]:
    """Every measurement, for CSV."""
    epoch, layer, side, owner = np.argwhere(np.isfinite(values)).T
    return {
        "epoch": epoch.tolist(),
        "layer": layer.tolist(),
        "direction": [DIRECTIONS[place] for place in side.tolist()],
        "owner": owner.tolist(),
        name: [float(f"{value:.6g}") for value in values[np.isfinite(values)].tolist()],
    }


def _over_owners(values: Any, how: Any) -> list[float | None]:
    """One number an epoch; none where no owner measured."""
    rows = [row[np.isfinite(row)] for row in values]
    return [float(how(row)) if row.size else None for row in rows]
