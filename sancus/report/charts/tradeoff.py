"""What bytes buy: the test score of every group against all its bytes an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sancus.report.chart import Chart, Key, colour, label, series_colour
from sancus.report.groups import RunGroup, an_epoch, of_result
from sancus.report.prose import best_score
from sancus.report.units import bytes_text, score_text
from sancus.report.volume import all_an_epoch, ratio, times_text

Mark = tuple[RunGroup, int, float, float]  # group, its place, all bytes an epoch, test score
MOST_TICKS = 7
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")


def tradeoff(groups: Sequence[RunGroup]) -> list[Chart]:
    """One mark a group, with the spread of its seeds; only where there is something to compare."""
    marks = [
        (group, place, size, score)
        for place, group in enumerate(groups)
        if (size := group.mean(all_an_epoch)) is not None
        and (score := group.mean(of_result("test"))) is not None
    ]
    if len(marks) < 2:
        return []
    silent = [group.label for group, _, size, _ in marks if not size]
    sending = [item for item in marks if item[2]] or marks
    least = min(sending, key=lambda item: item[2])
    most = max(sending, key=lambda item: item[2])
    fewer = f", {_fewer(most, least)} fewer than {most[0].label}" if least[2] else ""
    nothing = f" {', '.join(silent)} sends nothing and is not drawn." if silent else ""
    return [
        Chart(
            "What the bytes buy",
            "Test score at the best validation epoch against all bytes an epoch (payloads, parameters and "
            "agreement): up and left is better. Bars reach from the lowest to the highest seed.",
            f"{best_score(groups) or ''} {least[0].label} sends least, "
            f"{bytes_text(least[2])} an epoch{fewer}, and scores {score_text(least[3])}.{nothing}".strip(),
            {
                "run": [group.label for group, *_ in marks],
                "seeds": [len(group.runs) for group, *_ in marks],
                "all_bytes_an_epoch": [size for _, _, size, _ in marks],
                "wire_bytes_an_epoch": [_payload(group) for group, *_ in marks],
                "test": [score for *_, score in marks],
            },
            [_mark(*mark) for mark in marks],
            {
                "xaxis": {"type": "log", "title": {"text": "all bytes an epoch (log)"}, **_ticks(marks)},
                "yaxis": {"title": {"text": "test, %"}, "nticks": 6},
                "hovermode": "closest",
            },
            [
                Key(group.label, series_colour(place), "box", (at,))
                for at, (group, place, *_) in enumerate(marks)
            ],
            [
                ["", "seeds", "all bytes an epoch", "payload alone", "test"],
                *(
                    [
                        group.label,
                        str(len(group.runs)),
                        bytes_text(size),
                        bytes_text(_payload(group) or 0.0),
                        score_text(score),
                    ]
                    for group, _, size, score in marks
                ),
            ],
            height=340,
            wide=True,
        )
    ]


def _mark(group: RunGroup, place: int, size: float, score: float) -> dict[str, Any]:
    """A group's scatter mark, with the spread of its seeds."""
    scores = [100 * value for value in group.values(of_result("test"))]
    shade = colour(series_colour(place))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group.label),
        "x": [size or None],
        "y": [100 * score],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(scores) - 100 * score],
            "arrayminus": [100 * score - min(scores)],
            "visible": len(scores) > 1,
            "color": shade,
            "thickness": 1.5,
        },
        "marker": {"color": shade, "size": 13, "symbol": MARKS[place % len(MARKS)]},
        "hovertemplate": f"<b>{label(group.label)}</b><br>{bytes_text(size)} an epoch, "
        f"test {score_text(score)}<extra></extra>",
    }


def _payload(group: RunGroup) -> float | None:
    """Payload bytes an epoch."""
    return group.mean(an_epoch("wire_bytes"))


def _fewer(most: Mark, least: Mark) -> str:
    """How many times fewer in all, and of the payload alone."""
    alone = times_text(ratio(_payload(most[0]), _payload(least[0])))
    return f"{times_text(ratio(most[2], least[2]))} (payload alone {alone})"


def _ticks(marks: Sequence[Mark]) -> dict[str, list[Any]]:
    """Round numbers of bytes within reach of the marks: 1, 2 and 5 times powers of ten, or these alone."""
    sizes = [size for _, _, size, _ in marks if size]
    if not sizes:
        return {}
    powers = range(math.floor(math.log10(min(sizes))) - 1, math.ceil(math.log10(max(sizes))) + 2)
    for steps in ((1, 2, 5), (1,)):
        values = [step * 10.0**power for power in powers for step in steps]
        near = [value for value in values if min(sizes) / 3 <= value <= 3 * max(sizes)]
        if len(near) <= MOST_TICKS:
            break
    return {"tickvals": near, "ticktext": [bytes_text(value) for value in near]}
