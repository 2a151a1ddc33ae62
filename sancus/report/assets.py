"""The chart library inside the page: plotly.js as its Python package carries it, compressed.

The page's own script unpacks it, so that a report is one file that opens from disk, with no network. Nothing
of plotly is imported but the function that hands out the text.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from sancus.report.chart import Chart


@functools.cache
def packed_library() -> str:
    """plotly.js, compressed by gzip and written in base64."""
    from plotly.offline import get_plotlyjs

    return _pack(get_plotlyjs())


def packed_charts(charts: Sequence[Chart]) -> str:
    """Traces, layout and CSV columns of every chart, for the page's script; compressed like the library."""
    content: list[dict[str, Any]] = [
        {"traces": chart.traces, "layout": chart.layout, "columns": chart.columns, "name": chart.heading}
        for chart in charts
    ]
    return _pack(json.dumps(content, separators=(",", ":"), allow_nan=False))


def style() -> str:
    """The style sheet of the page."""
    return (files("sancus.report") / "page.css").read_text(encoding="utf-8")


def script() -> str:
    """The script of the page."""
    return (files("sancus.report") / "page.js").read_text(encoding="utf-8")


def content_policy() -> str:
    """What the browser may do: run this one script and what it unpacks; fetch nothing."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}' 'strict-dynamic'; style-src 'unsafe-inline'; "
        "img-src data: blob:"
    )


def _pack(text: str) -> str:
    content = gzip.compress(text.encode("utf-8", errors="replace"), 6, mtime=0)
    return base64.b64encode(content).decode()
