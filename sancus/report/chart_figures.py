"""Charts as figures of the page: heading, sentence, legend, drawing, summary, table and CSV."""

from __future__ import annotations

from collections.abc import Sequence

from sancus.report.chart import Chart
from sancus.report.markup import Markup, plain_table, tag
from sancus.report.prose import explained


class Gallery:
    """The figures of a page, numbered as they are placed."""

    def __init__(self) -> None:
        self.charts: list[Chart] = []

    def grid(self, charts: Sequence[Chart]) -> Markup:
        """Figures beside and below each other."""
        three = len(charts) % 3 == 0 and not any(chart.wide for chart in charts)
        return _columns([self._figure(chart, "") for chart in charts], three=three)

    def named_grid(self, charts: Sequence[tuple[Chart, str]], *, wide: bool = False) -> Markup:
        """The same chart of several groups, each under the name of its group."""
        three = len(charts) > 2 and not any(chart.wide for chart, _ in charts)
        return _columns([self._figure(chart, name, narrow=not wide) for chart, name in charts], three=three)

    def _figure(self, chart: Chart, name: str, *, narrow: bool = False) -> Markup:
        place = len(self.charts)
        self.charts.append(chart)
        heading = f"{chart.heading}: {name}" if name else chart.heading
        drawing = tag(
            "div",
            class_="plot",
            id=f"plot-{place}",
            role="img",
            aria_label=f"{heading}. {chart.summary}",
            data_height=chart.height,
            style=f"height:{chart.height}px",
        )
        csv = tag("button", "CSV", type="button", class_="csv", data_chart=place, title="Save these numbers")
        tools = [csv]
        if len(chart.table) > 1:
            head, *rows = chart.table
            tools.append(tag("details", tag("summary", "Table"), plain_table(head, rows, heading)))
        return tag(
            "figure",
            tag("h3", heading),
            tag("p", explained(chart.about), class_="about"),
            *_legend(chart, place),
            drawing,
            tag("figcaption", chart.summary),
            tag("div", *tools, class_="tools"),
            class_="wide" if chart.wide and not narrow else None,
        )


def _columns(figures: Sequence[Markup], *, three: bool) -> Markup:
    return tag("div", *figures, class_="charts three" if three else "charts")


def _legend(chart: Chart, place: int) -> list[Markup]:
    if not chart.legend:
        return []
    entries = []
    for key in chart.legend:
        swatch = tag(
            "span", class_=f"swatch {key.swatch}", style=f"--c:var(--{key.colour})", aria_hidden="true"
        )
        entry = tag("span", swatch, key.label, class_="key")
        if key.traces and len(chart.legend) > 1:
            entry = tag(
                "button",
                swatch,
                key.label,
                type="button",
                class_="key",
                aria_pressed="true",
                data_chart=place,
                data_traces=" ".join(map(str, key.traces)),
            )
        entries.append(tag("li", entry))
    return [tag("ul", *entries, class_="legend")]
