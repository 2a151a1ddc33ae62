"""How late steps were merged, and how old their histories were, where no rank waited for another."""

from __future__ import annotations

from typing import Any

from sancus.report.chart import Chart, colour
from sancus.report.groups import RunGroup
from sancus.report.run_reader import number, numbers, section
from sancus.report.units import count_text, number_text, share_text


def merge_charts(group: RunGroup) -> list[Chart]:
    """Delays of weights, ages of histories; nothing of a run whose ranks had epochs in common."""
    facts = section(group.first.run, "schedule")
    delays, ages = counts_of(facts.get("weight_delays")), counts_of(facts.get("history_ages"))
    charts = []
    if delays:
        charts.append(
            _histogram(
                "Delay of weights",
                "How many merges came between the weights that a step began with and its own merge.",
                f"{share_text(delays.get(0, 0) / sum(delays.values()))} of the steps changed the weights "
                f"that they began with. {_speeds(facts)}",
                ("delay, merges", "steps", delays),
            )
        )
    if ages:
        charts.append(
            _histogram(
                "Ages of histories",
                "How many steps the owner had made since, when another rank used its rows.",
                f"At most {max(ages)} steps, in the mean {number_text(_mean(ages))}.",
                ("age, steps of the owner", "uses", ages),
            )
        )
    return charts


def counts_of(pairs: Any) -> dict[int, int]:
    """`[[value, count], …]` of a file, as far as it is that."""
    found: dict[int, int] = {}
    for pair in pairs if isinstance(pairs, list) else []:
        values = [number(value) for value in pair] if isinstance(pair, list) else []
        if len(values) == 2 and values[0] is not None and values[1] is not None and values[1] > 0:
            found[int(values[0])] = int(values[1])
    return dict(sorted(found.items()))


def _mean(counts: dict[int, int]) -> float:
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def _speeds(facts: dict[str, Any]) -> str:
    """Steps a second, rank by rank."""
    speeds = [number_text(speed) for speed in numbers(facts.get("steps_per_second")) if speed is not None]
    return f"Steps a second, by rank: {', '.join(speeds)}." if speeds else ""


def _histogram(heading: str, about: str, summary: str, what: tuple[str, str, dict[int, int]]) -> Chart:
    across, up, counts = what
    values, heights = list(counts), list(counts.values())
    bars = {
        "type": "bar",
        "name": up,
        "x": values,
        "y": heights,
        "marker": {"color": colour("s0"), "line": {"width": 0}},
        "hovertemplate": f"%{{x}}: %{{y}} {up}<extra></extra>",
    }
    common = sorted(counts, key=lambda value: -counts[value])[:8]
    return Chart(
        heading,
        about,
        summary,
        {across: values, up: heights},
        [bars],
        {
            "xaxis": {"title": {"text": across}},
            "yaxis": {"title": {"text": up}, "rangemode": "tozero"},
            "hovermode": "closest",
        },
        (),
        [[across, up], *([str(value), count_text(counts[value])] for value in sorted(common))],
    )
