"""Errors of codecs over the epochs, by layer and direction."""

from __future__ import annotations

import numpy as np

from sancus.report.chart import Chart, thinned_text, thinning
from sancus.report.charts.stream_lines import measured_columns, measured_streams, stream_lines
from sancus.report.groups import RunGroup
from sancus.report.run_reader import items, number, section
from sancus.report.units import number_text


def codec_errors(group: RunGroup) -> list[Chart]:
    """A line a layer and direction: the mean over owners, in a band from the least to the largest."""
    errors = group.first.errors
    if errors is None or not np.isfinite(errors).any():
        return []
    size = thinning(len(errors))
    traces, legend = stream_lines(errors, size)
    table, means = [["", "mean error", "largest", "noise"]], {}
    for name, layer, side in measured_streams(errors):
        values = errors[:, layer, side]
        measurements = values[np.isfinite(values)]
        means[name] = float(measurements.mean())
        figures = (number_text(float(figure)) for figure in (measurements.mean(), measurements.max()))
        table.append([name, *figures, _noise(group, layer, side)])
    worst = max(means, key=lambda name: means[name])
    return [
        Chart(
            "Error of the codec",
            "How far decoded payloads are from what was encoded, relative to its size: true errors of some "
            "rows in every eighth epoch; mean of the owners, in a band from least to largest.",
            f"Largest in {worst}: {number_text(means[worst])} in the mean. {_judgement(group)}"
            f"{group.seeds_text}{thinned_text(size)}",
            measured_columns(errors, "codec_error"),
            traces,
            {
                "xaxis": {"title": {"text": "epoch"}},
                "yaxis": {"title": {"text": "relative error"}, "rangemode": "tozero"},
            },
            legend,
            table,
        )
    ]


def _noise(group: RunGroup, layer: int, side: int) -> str:
    """The largest mean over the owners of a stream."""
    direction = ("forward", "backward")[side]
    streams = items(section(group.first.run, "communication").get("streams"))
    of_stream = [each for each in streams if (each.get("layer"), each.get("direction")) == (layer, direction)]
    values = [value for each in of_stream if (value := number(each.get("codec_noise"))) is not None]
    return number_text(max(values)) if values else "–"


def _judgement(group: RunGroup) -> str:
    """What the errors do to rows, against what training stands."""
    noise = number(section(group.first.run, "communication").get("codec_noise"))
    if noise is None:
        return ""
    return f"The errors of embeddings are {number_text(noise)} of what training was seen to stand."
