"""Beside DIGEST: what a period costs and saves."""

from __future__ import annotations

from itertools import pairwise

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured

ALONE, FRESH = "never (partition only)", "N = 1"
form = FIGURES["points"].form


def text(measured: Measured) -> str:
    """What agrees and what does not."""
    periods = [one for one in measured.labels("period") if one.startswith("N = ")]
    places = [(data, parts) for data in measured.labels("data") for parts in measured.labels("parts")]
    losses = {place: _points(measured, *place, FRESH) for place in places}
    below = [
        f"{data}, {parts} ({period})"
        for data, parts in places
        for period in periods
        if _points(measured, data, parts, period) < _points(measured, data, parts, ALONE)
    ]
    falling = sum(
        all(
            _points(measured, *place, sooner) >= _points(measured, *place, later) - _spread(measured, *place)
            for sooner, later in pairwise(periods)
        )
        for place in places
    )
    fresh = ", ".join(f"{data}, {parts} {form(loss)}" for (data, parts), loss in losses.items())
    ten = "N = 10"
    return (
        f"**Beside the paper.** On METIS parts, as in the paper, N = 10 is {measured.span('points', parts='METIS', period=ten)} "
        f"points off exact training in the mean of {measured.seeds} seeds, training on the parts alone "
        f"{measured.span('points', parts='METIS', period=ALONE)} points; all bytes are {measured.span('fewer', parts='METIS', period=ten)} "
        f"fewer, the payload {measured.span('payload_fewer', parts='METIS', period=ten)}. On random parts N = 10 is "
        f"{measured.span('points', parts='random', period=ten)} points off, the parts alone "
        f"{measured.span('points', parts='random', period=ALONE)}. Accuracy falls with N, within the spread of the seeds, in "
        f"{falling} of {len(places)} places (paper: N = 10 is best against time, 1 and 20 are worse). Below "
        f"training on the parts alone: {'; '.join(below) or 'nothing'}. What is lost with rows that are fresh in every epoch, but "
        f"constants of the gradient (N = 1), is the price of the missing gradients alone: {fresh}."
    )


def _points(measured: Measured, data: str, parts: str, period: str) -> float:
    return measured.value("points", data=data, parts=parts, period=period)


def _spread(measured: Measured, data: str, parts: str) -> float:
    """The widest distance of two seeds of exact training."""
    tests = [
        case["figures"]["test"]
        for case in measured.cases(data=data, parts=parts, period="every epoch, with gradients")
    ]
    return max(tests) - min(tests)
