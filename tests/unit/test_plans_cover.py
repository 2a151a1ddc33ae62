"""Plan `prepost` sends as few rows as any plan can: minimum vertex covers, against brute force."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from sancus.plans.cover import minimum_cover
from tests.unit.test_plans import Cut, cut, cuts, plans_of

Dense = np.ndarray[Any, Any]


@st.composite
def patterns(draw: st.DrawFn) -> Dense:
    rows, columns = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return np.array(draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))).reshape(
        rows, columns
    )


def least_cover(pattern: Dense) -> int:
    """By trying all sets of rows: the columns that they leave uncovered must all be taken."""
    rows = range(pattern.shape[0])
    chosen = (set(some) for size in range(len(rows) + 1) for some in combinations(rows, size))
    return min(
        len(some) + int(pattern[[r for r in rows if r not in some]].any(axis=0).sum()) for some in chosen
    )


@given(patterns())
def test_covers_are_covers_and_the_least(pattern: Dense) -> None:
    cover = minimum_cover(sp.csr_array(pattern.astype(np.float32)))
    left = pattern.copy()
    left[cover.rows] = False
    left[:, cover.columns] = False
    assert not left.any()
    assert cover.size == least_cover(pattern)
    assert (np.diff(cover.rows) > 0).all() and (np.diff(cover.columns) > 0).all()


@given(graph=cuts())
def test_prepost_sends_the_least_rows_in_both_directions(graph: Cut) -> None:
    plans, halo = plans_of("prepost", graph), plans_of("halo", graph)
    for i in range(graph.ranks):
        for j in range(graph.ranks):
            if i != j:
                sent = plans[j].forward.make[i].rows_out
                assert sent == least_cover(graph.block(i, j).numpy() != 0)
                assert sent == plans[i].backward.make[j].rows_out <= halo[j].forward.make[i].rows_out


def test_a_hub_costs_one_row_whichever_side_it_is_on() -> None:
    star = np.zeros((8, 8), np.float32)
    star[0, 4:] = star[4:, 0] = 1
    graph = cut(sp.csr_array(star), np.array([0] * 4 + [1] * 4), 2, "sum")
    rows = {
        name: [plan.forward.make[1 - r].rows_out for r, plan in enumerate(plans_of(name, graph))]
        for name in ("halo", "prepost")
    }
    assert rows == {"halo": [1, 4], "prepost": [1, 1]}


def test_a_million_entries_are_covered() -> None:
    """Power-law columns, as cuts have: the cover is far below both sides, and found at once."""
    rng = np.random.default_rng(0)
    columns = np.minimum((rng.pareto(0.7, 1_000_000) * 20).astype(np.int64), 99_999)
    block = sp.coo_array((np.ones(1_000_000, np.float32), (rng.integers(0, 100_000, 1_000_000), columns)))
    pattern = sp.csr_array(block)
    cover = minimum_cover(pattern)
    left = np.ones(pattern.shape[1], bool)
    left[cover.columns] = False
    uncovered = np.setdiff1d(np.unique(pattern.tocoo().coords[0][left[pattern.indices]]), cover.rows)
    assert not len(uncovered)
    assert cover.size < len(np.unique(pattern.indices))
