"""What a stage did when, by a clock of the test."""

from __future__ import annotations

import itertools

import pytest

from sancus.training.timeline import Timeline, bubble_formula


def test_spans_count_from_the_beginning_and_what_is_not_work_is_bubble() -> None:
    moments = iter([10.0, 11.0, 12.0, 12.0, 15.0, 15.0, 16.0, 20.0, 30.0])
    timeline = Timeline(lambda: next(moments))
    assert timeline.bubble == 0.0, "nothing was measured yet"
    timeline.begin()
    for doing in ("wait", "work", "send"):
        with timeline.at(doing, "forward", 3):
            pass
    timeline.end()
    assert [(span.begun, span.ended) for span in timeline.spans] == [(1.0, 2.0), (2.0, 5.0), (5.0, 6.0)]
    assert timeline.bubble == pytest.approx(0.6)
    plain = timeline.to_plain()
    assert plain["doing"] == [0, 1, 2] and plain["chunk"] == [3, 3, 3] and plain["seconds"] == 10.0
    timeline.begin()
    assert timeline.to_plain()["doing"] == [], "only the last epoch is kept"


def test_the_bubble_of_equal_stages_is_that_of_a_simulated_pipeline() -> None:
    for stages, chunks in itertools.product((1, 2, 4, 7), (1, 3, 32)):
        ends = [[0] * (chunks + 1) for _ in range(stages + 1)]
        for stage, chunk in itertools.product(range(1, stages + 1), range(1, chunks + 1)):
            ends[stage][chunk] = max(ends[stage - 1][chunk], ends[stage][chunk - 1]) + 1
        assert bubble_formula(stages, chunks) == pytest.approx(1 - chunks / ends[stages][chunks])
