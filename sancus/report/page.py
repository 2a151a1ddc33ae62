"""One self-contained HTML page from the files of one run or of many.

The page opens from disk: style, script, chart library and data are inside, and its content policy forbids the
browser to fetch anything. Without a script the text, the tables and the summary of every figure remain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sancus.report import assets, sections
from sancus.report.chart import Chart
from sancus.report.chart_figures import Gallery
from sancus.report.charts.codec_errors import codec_errors
from sancus.report.charts.curves import curves
from sancus.report.charts.drift_over_time import drift_against_gap
from sancus.report.charts.gantt import gantt, waiting_and_staleness
from sancus.report.charts.merges import merge_charts
from sancus.report.charts.ranks import cache_memory, partition_quality
from sancus.report.charts.raster import age_histogram, raster
from sancus.report.charts.times import epoch_times, time_bars
from sancus.report.charts.tradeoff import tradeoff
from sancus.report.charts.traffic import bytes_by_epoch, bytes_by_stream, payload_matrix
from sancus.report.groups import RunGroup, group_runs
from sancus.report.markup import Markup, join, tag
from sancus.report.prose import glossary
from sancus.report.run_reader import RunFiles, read

REPORT = "report.html"


def write_report(
    *run_dirs: Path, out: Path | None = None, publish: Callable[[Path, Path], None] = os.replace
) -> Path:
    """Write a page on runs, complete or not, and return its path: `out`, or beside the files of the first.

    `publish` gives the page its name when it is written.
    """
    target = out or run_dirs[0] / REPORT
    page = render([read(run_dir) for run_dir in run_dirs])
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_bytes(page.encode("utf-8", errors="replace"))
    publish(partial, target)
    return target


def render(runs: Sequence[RunFiles]) -> str:
    """The whole page as text."""
    groups = group_runs(runs)
    gallery = Gallery()
    body = [
        sections.header(runs, groups),
        *(part for files in runs for part in sections.warnings(files, with_name=len(runs) > 1)),
        *_overview(runs, groups, gallery),
        *_side_by_side("Decisions", groups, raster, gallery, whole=True),
        *_section("Learning", gallery, curves(groups)),
        *_side_by_side("Where the bytes went", groups, _traffic, gallery),
        *_side_by_side("Stages", groups, _stages, gallery),
        *_side_by_side("How stale it was", groups, _staleness, gallery),
        *_side_by_side("What the codec rounds away", groups, codec_errors, gallery),
        *_side_by_side("Ranks", groups, _ranks, gallery),
        *_details(runs),
        glossary(),
    ]
    title = sections.page_title(runs)
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{assets.content_policy()}">'),
        tag("title", f"{title} · Sancus"),
        tag("style", Markup(assets.style())),
    ]
    scripts = [
        tag("script", Markup(assets.packed_charts(gallery.charts)), type="text/plain", id="charts"),
        tag("script", Markup(assets.packed_library()), type="text/plain", id="library"),
        tag("script", Markup(assets.script())),
    ]
    main = tag("main", *(part for part in body if part))
    page = tag("html", tag("head", *head), tag("body", main, *(scripts if gallery.charts else ())), lang="en")
    return join([Markup("<!doctype html>\n"), page, Markup("\n")])


def _overview(runs: Sequence[RunFiles], groups: Sequence[RunGroup], gallery: Gallery) -> list[Markup]:
    """The comparison where there is one; the time of an epoch."""
    table = sections.comparison(groups) if len(runs) > 1 else []
    heading = "Side by side" if len(runs) > 1 else "Time"
    charts = [*tradeoff(groups), *time_bars(groups)]
    if not table and not charts:
        return []
    return [tag("section", tag("h2", heading), *table, gallery.grid(charts))]


def _side_by_side(
    heading: str,
    groups: Sequence[RunGroup],
    make: Callable[[RunGroup], list[Chart]],
    gallery: Gallery,
    *,
    whole: bool = False,
) -> list[Markup]:
    """The same charts of every group; with several groups, each under its name."""
    charts_of = [(group, make(group)) for group in groups]
    charts_of = [(group, charts) for group, charts in charts_of if charts]
    if len(groups) == 1:
        return _section(heading, gallery, charts_of[0][1] if charts_of else [])
    if whole:
        pairs = [(chart, group.label) for group, charts in charts_of for chart in charts]
        return (
            [
                tag(
                    "section",
                    tag("h2", heading),
                    gallery.named_grid(pairs, wide=len(pairs) < 2),
                )
            ]
            if pairs
            else []
        )
    kinds = dict.fromkeys(chart.heading for _, charts in charts_of for chart in charts)
    parts = []
    for kind in kinds:
        pairs = [(c, group.label) for group, charts in charts_of for c in charts if c.heading == kind]
        parts.append(gallery.named_grid(pairs))
    return [tag("section", tag("h2", heading), *parts)] if parts else []


def _section(heading: str, gallery: Gallery, charts: Sequence[Chart]) -> list[Markup]:
    return [tag("section", tag("h2", heading), gallery.grid(charts))] if charts else []


def _traffic(group: RunGroup) -> list[Chart]:
    return [*bytes_by_stream(group), *bytes_by_epoch(group.first), *epoch_times(group.first)]


def _staleness(group: RunGroup) -> list[Chart]:
    return [*drift_against_gap(group), *(merge_charts(group) or age_histogram(group))]


def _stages(group: RunGroup) -> list[Chart]:
    return [*gantt(group), *waiting_and_staleness(group)]


def _ranks(group: RunGroup) -> list[Chart]:
    return [*cache_memory(group), *payload_matrix(group), *partition_quality(group)]


def _details(runs: Sequence[RunFiles]) -> list[Markup]:
    """Tables and settings: open for one run, folded for many."""
    if len(runs) == 1:
        return sections.details(runs[0])
    folds = []
    for files in runs:
        inner = sections.details(files)
        if inner:
            folds.append(tag("details", tag("summary", sections.run_name(files)), *inner, class_="run"))
    return [tag("section", tag("h2", "Every run"), *folds)] if folds else []
