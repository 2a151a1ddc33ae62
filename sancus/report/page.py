"""One self-contained HTML page from the files of a run.

The page opens from disk: style and drawings are inside, there is no script, and its content policy
forbids the browser to fetch anything.
"""

from __future__ import annotations

import os
from pathlib import Path

from sancus.report import sections
from sancus.report.curves import curves
from sancus.report.markup import Markup, join, tag
from sancus.report.run_files import RunFiles, read, section
from sancus.report.style import CSS
from sancus.report.summary import title

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` beside the files of a run, complete or not, and return its path."""
    page = render(read(run_dir))
    target, partial = run_dir / "report.html", run_dir / "report.html.partial"
    partial.write_bytes(page.encode("utf-8", errors="replace"))
    os.replace(partial, target)
    return target


def render(files: RunFiles) -> str:
    """The whole page as text."""
    run, epochs = files.run, files.epochs
    metric = str(section(run, "result").get("metric") or "score")
    body = [
        *sections.header(run),
        *sections.missing_files(files.missing),
        *sections.results(run),
        *sections.costs(run, epochs),
        *curves(epochs, metric),
        *sections.partition(run),
        *sections.ranks(run),
        *sections.settings(run),
    ]
    head = [
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", f"{title(run)} · Sancus"),
        tag("style", Markup(CSS)),
    ]
    page = tag("html", tag("head", *head), tag("body", tag("main", *body)), lang="en")
    return join([Markup("<!doctype html>\n"), page, Markup("\n")])
