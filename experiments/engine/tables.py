"""Tables of results in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.engine.experiment import REPEATS, Table
from experiments.engine.figures import COLUMNS, FIGURES
from experiments.engine.results import describe

NOTHING = "–"


def section(results: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Command, machine and tables: the first part of what a README shows of its experiment."""
    head = f"    {results['command']}\n\n{describe(results['machine'])}, {results['date']}."
    repeats = len({case["labels"].get(REPEATS) for case in results["cases"]})
    if repeats > 1:
        head += (
            f" {repeats} repeats, interleaved: times are medians (least to most), scores means ± deviation."
        )
    return "\n\n".join([head, *(_captioned(table, results["cases"]) for table in tables)])


def render(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _captioned(table: Table, cases: Sequence[Mapping[str, Any]]) -> str:
    text = render(make(table, cases))
    return f"{table.caption}\n\n{text}" if table.caption else text


def make(table: Table, cases: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The cells of a table, its head first."""
    selection = [
        case
        for case in cases
        if all(case["labels"].get(axis) in values for axis, values in table.where.items())
    ]
    places = [_distinct([case["labels"][axis] for case in selection]) for axis in table.rows]
    keys = sorted(
        {tuple(case["labels"][axis] for axis in table.rows) for case in selection},
        key=lambda key: [place.index(label) for place, label in zip(places, key, strict=True)],
    )
    across = table.across
    if across is None:
        head = [*table.rows, *(FIGURES[name].head for name in table.figures)]
        body = [
            [*key, *(cell(_of(selection, table.rows, key), name) for name in table.figures)] for key in keys
        ]
        return [head, *body]
    columns = _distinct([case["labels"][across] for case in selection])
    heads = ", ".join(FIGURES[name].head for name in table.figures)
    rows = [[*table.rows[:-1], f"{table.rows[-1]} ({heads})", *columns]]
    for key in keys:
        mine = _of(selection, table.rows, key)
        cells = [[case for case in mine if case["labels"][across] == column] for column in columns]
        rows.append([*key, *(", ".join(cell(some, name) for name in table.figures) for some in cells)])
    return rows


def cell(cases: Sequence[Mapping[str, Any]], name: str) -> str:
    """One figure over all repeats, with its spread."""
    if name == COLUMNS:
        return "; ".join(_distinct([case[COLUMNS] for case in cases])) or NOTHING
    figure = FIGURES[name]
    values = [case["figures"][name] for case in cases if case["figures"].get(name) is not None]
    if not values:
        return NOTHING
    text = figure.form(figure.over_repeats(values))
    if len(values) < len(cases):
        text += f" ({len(values)} of {len(cases)})"
    if len(values) > 1 and figure.over_repeats is statistics.fmean:
        return f"{text} ± {statistics.stdev(values):.1f}"
    if (
        len(values) > 1
        and figure.over_repeats is statistics.median
        and figure.form(min(values)) != figure.form(max(values))
    ):
        return f"{text} ({figure.form(min(values))} to {figure.form(max(values))})"
    return text


def _of(
    cases: Sequence[Mapping[str, Any]], axes: Sequence[str], key: Sequence[str]
) -> list[Mapping[str, Any]]:
    return [case for case in cases if [case["labels"][axis] for axis in axes] == list(key)]


def _distinct(values: Sequence[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
