"""Run files in, one page out: complete, from a killed run, and with names that are HTML."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sancus.report import figures, units
from sancus.report.page import write_report
from sancus.report.summary import bill, result, title

VOID = {"meta"}
RANKS = 4
EPOCHS = 30

RUN: dict[str, Any] = {
    "config": {"model": {"name": "gcn", "hidden": 64}, "codec": "int8", "seed": 0, "clip": None},
    "command": "sancus train cora --ranks 4 --codec int8",
    "versions": {"python": "3.11.7", "torch": "2.13.0", "sancus": "0.1.0"},
    "hardware": {"cpu": "made up", "cores": 2, "memory_bytes": 8_000_000_000, "ranks": RANKS, "threads": 1},
    "graph": {
        "name": "cora",
        "nodes": 2708,
        "edges": 10556,
        "features": 1433,
        "classes": 7,
        "directed": False,
    },
    "partition": {
        "partitioner": "metis",
        "edge_cut": 1055,
        "edge_cut_share": 0.1,
        "rows": [677, 677, 677, 677],
        "nonzeros": [2000, 3000, 2556, 3000],
        "payload_rows": {"block": 8124, "halo": 912},
    },
    "result": {
        "best_epoch": 21,
        "val": 0.8012,
        "test": 0.8134,
        "metric": "accuracy",
        "epochs": EPOCHS,
        "seconds_total": 1.8,
        "seconds_per_epoch": 0.06,
    },
    "communication": {
        "per_epoch": {
            "wire_bytes": 1_234_567.0,
            "raw_bytes": 4_938_268.0,
            "agreement_bytes": 768.0,
            "parameter_bytes": 2_212_000.0,
            "sends": 2.5,
            "skips": 7.5,
        },
        "total": {
            "wire_bytes": 37_037_010,
            "raw_bytes": 148_148_040,
            "agreement_bytes": 23_040,
            "parameter_bytes": 66_360_000,
            "sends": 75,
            "skips": 225,
            "evaluation_bytes": 5_000_000,
        },
        "streams": [
            {
                "layer": layer,
                "direction": direction,
                "owner": owner,
                "wire_bytes": 1000 * (owner + 1),
                "raw_bytes": 4000 * (owner + 1),
                "sends": 10,
                "skips": 20,
            }
            for layer in (0, 1)
            for direction in ("backward", "forward")
            for owner in range(RANKS)
        ],
    },
    "cache": {
        "history_bytes": [100_000, 200_000, 300_000, 400_000],
        "share_of_peak": [0.001, 0.002, 0.003, 0.004],
    },
    "memory": {"peak_bytes": [100_000_000, 110_000_000, 120_000_000, 130_000_000]},
}


def epoch_line(epoch: int) -> dict[str, Any]:
    score = None if epoch % 5 else 0.8 - 0.5 / (epoch + 1)
    return {
        "epoch": epoch,
        "loss": 2.0 / (epoch + 1),
        "train": score,
        "val": score,
        "test": score,
        "seconds": 0.06,
        "compute_seconds": 0.04,
        "comm_seconds": 0.02,
        "wire_bytes": 1_234_567,
        "raw_bytes": 4_938_268,
        "sends": 2,
        "skips": 8,
        "max_age": epoch % 4,
        "max_drift": 0.01 * (epoch % 4),
        "history_bytes": 400_000,
    }


METRICS = "".join(json.dumps(epoch_line(epoch)) + "\n" for epoch in range(EPOCHS))


class Page(HTMLParser):
    """What a browser would see: balanced tags, visible text, attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.pieces: list[str] = []
        self.rows: list[list[str]] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(self.pieces).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.pieces.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def write(directory: Path, run: Any = RUN, metrics: str | None = METRICS, decisions: bool = True) -> Page:
    if run is not None:
        (directory / "run.json").write_text(run if isinstance(run, str) else json.dumps(run))
    if metrics is not None:
        (directory / "metrics.jsonl").write_text(metrics)
    if decisions:
        (directory / "decisions.npz").write_bytes(b"")
    path = write_report(directory)
    assert path == directory / "report.html"
    assert not list(directory.glob("*.partial"))
    return Page(path)


def test_a_complete_run(tmp_path: Path) -> None:
    page = write(tmp_path)
    assert "incomplete" not in page.text
    assert page.text.startswith("gcn on cora · Sancus")
    assert ["test accuracy", "81.34 %"] in page.rows
    assert ["best validation epoch", "21"] in page.rows
    assert ["largest age", "3 epochs"] in page.rows
    assert ["edge cut", "1,055 (10.0 % of all edges)"] in page.rows
    assert ["rows sent, plan halo", "912 an aggregation"] in page.rows
    assert ["imbalance of nonzeros", "1.14 (largest / mean)"] in page.rows
    assert ["rank 1", "677", "3,000", "200 kB", "0.2 %", "110 MB"] in page.rows
    assert ["model.hidden", "64"] in page.rows
    assert ["clip", "null"] in page.rows
    assert ["memory_bytes", "8.0 GB"] in page.rows
    assert ["torch", "2.13.0"] in page.rows
    assert RUN["command"] in page.text
    for label, value in bill(RUN):
        assert [label, value] in page.rows


def test_streams_are_a_row_a_direction_and_a_column_an_owner(tmp_path: Path) -> None:
    rows = write(tmp_path).rows
    head = next(row for row in rows if "owner 3" in row)
    streams = [row for row in rows if row[0].startswith("layer ")]
    assert head == ["", "all owners", "raw", "owner 0", "owner 1", "owner 2", "owner 3"]
    assert [row[0] for row in streams] == [
        "layer 0 forward",
        "layer 0 backward",
        "layer 1 forward",
        "layer 1 backward",
    ]
    assert streams[0][4] == "2.0 kB10 of 30 sent"
    assert streams[0][1:3] == ["10.0 kB40 of 120 sent", "40.0 kB"]


def test_every_figure_has_a_caption_in_words(tmp_path: Path) -> None:
    page = write(tmp_path)
    assert page.tags.count("figure") == page.tags.count("figcaption") == 4
    labels = [value for name, value in page.attributes if name == "aria-label"]
    assert "Training loss. From 2 in epoch 0 to 0.06667 in epoch 29." in labels
    assert "Last evaluated in epoch 25: train 78.08 %, validation 78.08 %, test 78.08 %." in page.text
    assert "Mean 40.0 ms compute and 20.0 ms communication, which is 33.3 % communication." in page.text
    assert "Mean 1.2 MB, at most 1.2 MB." in page.text
    assert page.source.count('class="bar s1"') == EPOCHS + 1  # and one in the legend


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = write(tmp_path)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not {"src", "href", "style", "action"} & {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    assert "url(" not in page.source
    assert "@import" not in page.source
    assert "default-src 'none'" in page.source
    assert "prefers-color-scheme: dark" in page.source


@pytest.mark.parametrize(
    "evil", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b </title>"]
)
def test_names_with_html_in_them_are_text(tmp_path: Path, evil: str) -> None:
    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        return evil + value if isinstance(value, str) else value

    spoiled = spoil(RUN)
    spoiled["versions"] = {evil: evil}
    spoiled["partition"]["payload_rows"] = {evil: 1}
    spoiled["config"] = {evil: {evil: evil}}
    page = write(tmp_path, spoiled)
    assert not {"script", "img"} & set(page.tags)
    assert page.tags.count("title") == 1
    assert evil not in page.source
    assert f"{evil}cora" in page.text  # shown as it is, once unescaped
    assert [f"{evil}.{evil}", evil] in page.rows
    assert [evil, evil] in page.rows
    assert [f"rows sent, plan {evil}", "1 an aggregation"] in page.rows


def test_without_metrics_the_rest_is_shown(tmp_path: Path) -> None:
    page = write(tmp_path, metrics=None)
    assert "metrics.jsonl is not there" in page.text
    assert "figure" not in page.tags
    assert ["test accuracy", "81.34 %"] in page.rows


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    page = write(tmp_path, metrics=METRICS + '{"epoch": 30, "loss": 0.0')
    assert "metrics.jsonl: line 31 is not a complete record and left out." in page.text
    assert "in epoch 29." in page.text


def test_several_bad_lines_are_counted(tmp_path: Path) -> None:
    page = write(tmp_path, metrics="[1]\n\nnull\n" + METRICS + "{}")
    assert "metrics.jsonl: 3 lines, the first of them 1, are not a complete record and left out." in page.text
    assert page.tags.count("figure") == 4


def test_a_repeated_epoch_counts_once_and_last(tmp_path: Path) -> None:
    again = json.dumps(epoch_line(29) | {"loss": 0.5})
    page = write(tmp_path, metrics=METRICS + again + "\n" + json.dumps(epoch_line(30)) + "\n")
    assert page.source.count('class="bar s1"') == EPOCHS + 2
    assert "in epoch 30." in page.text


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "run.json is not there"),
        ('{"config": {', "run.json cannot be read"),
        ("[1]", "is not a JSON object"),
    ],
)
def test_without_run_json_the_curves_are_shown(tmp_path: Path, text: str | None, message: str) -> None:
    page = write(tmp_path, run=text)
    assert message in page.text
    assert page.text.startswith("A Sancus run")
    assert page.tags.count("figure") == 4


def test_a_run_killed_before_its_end_has_no_result(tmp_path: Path) -> None:
    started = {key: RUN[key] for key in ("config", "command", "versions", "hardware", "graph", "partition")}
    page = write(tmp_path, started, decisions=False)
    assert "run.json has no result, communication, cache, memory." in page.text
    assert "decisions.npz is not there." in page.text
    assert ["partitioner", "metis"] in page.rows
    assert RUN["command"] in page.text


def test_an_empty_directory_still_says_what_is_missing(tmp_path: Path) -> None:
    page = write(tmp_path, run=None, metrics="", decisions=False)
    assert "run.json is not there" in page.text
    assert "metrics.jsonl has no epoch" in page.text


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--out directory"):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize("junk", [None, 3, "x", [], [None], {"x": None}, [{"layer": None}], True])
def test_values_of_the_wrong_kind_are_left_out(tmp_path: Path, junk: Any) -> None:
    for key, value in RUN.items():
        write(tmp_path, RUN | {key: junk})
        for inner in value if isinstance(value, dict) else ():
            write(tmp_path, RUN | {key: value | {inner: junk}})


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0, -3.0, 1e300])
@pytest.mark.parametrize("count", [1, 2])
def test_any_loss_can_be_drawn(tmp_path: Path, loss: float, count: int) -> None:
    lines = [
        json.dumps({"epoch": epoch, "loss": loss, "compute_seconds": 0, "comm_seconds": 0})
        for epoch in range(count)
    ]
    page = write(tmp_path, metrics="\n".join(lines))
    drawn = [value or "" for name, value in page.attributes if name in ("d", "x", "y", "width", "height")]
    assert drawn
    assert not any("nan" in value or "inf" in value for value in drawn)
    if not math.isfinite(loss):
        assert f"The loss was not finite in {count} of {count} epochs." in page.text


def test_a_diverged_run_says_so(tmp_path: Path) -> None:
    page = write(tmp_path, metrics=METRICS + json.dumps(epoch_line(30) | {"loss": float("nan")}))
    assert "The loss was not finite in 1 of 31 epochs." in page.text


def test_lone_surrogates_do_not_stop_the_page(tmp_path: Path) -> None:
    write(tmp_path, RUN | {"command": "sancus \ud800"})


def test_title() -> None:
    assert title(RUN) == "gcn on cora"
    assert title({"config": {"model": "gat"}, "graph": {}}) == "gat"
    assert title({}) == "A Sancus run"


def test_result() -> None:
    assert result(RUN) == [
        ("test accuracy", "81.34 %"),
        ("validation accuracy", "80.12 %"),
        ("best validation epoch", "21"),
        ("epochs", "30"),
    ]
    assert result({}) == []
    assert result({"result": {"test": True, "val": "0.5", "epochs": None}}) == []


def test_bill() -> None:
    assert bill(RUN) == [
        ("wire bytes", "1.2 MB an epoch, 37.0 MB in all"),
        ("raw bytes", "4.9 MB an epoch, 148 MB in all (4.0 times the wire bytes)"),
        ("agreement bytes", "768 B an epoch, 23.0 kB in all"),
        ("parameter bytes", "2.2 MB an epoch, 66.4 MB in all"),
        ("evaluation bytes", "5.0 MB in all"),
        ("sends", "2.5 an epoch, 75 in all"),
        ("skips", "7.5 an epoch, 225 in all (75.0 % of all decisions)"),
        ("time", "60.0 ms an epoch, 1.8 s in all"),
        ("history a rank", "at most 400 kB (at most 0.4 % of peak memory)"),
        ("peak memory a rank", "at most 130 MB"),
    ]


def test_bill_of_a_partial_run() -> None:
    assert bill({}) == []
    assert bill({"communication": {"total": {"wire_bytes": 0, "raw_bytes": 0, "sends": 0, "skips": 0}}}) == [
        ("wire bytes", "0 B in all"),
        ("raw bytes", "0 B in all"),
        ("sends", "0 in all"),
        ("skips", "0 in all"),
    ]


BYTES = {
    0: "0 B",
    999: "999 B",
    999.6: "1.0 kB",
    99_940: "99.9 kB",
    99_960: "100 kB",
    999_400: "999 kB",
    999_500: "1.0 MB",
    1.2e6: "1.2 MB",
    3e18: "3,000 PB",
}


@pytest.mark.parametrize("value, text", BYTES.items())
def test_bytes_text(value: float, text: str) -> None:
    assert units.bytes_text(value) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (0.0123, "12.3 ms"),
        (1, "1.0 s"),
        (75.24, "75.2 s"),
        (125, "2 min"),
        (4000, "67 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_seconds_text(value: float, text: str) -> None:
    assert units.seconds_text(value) == text


def test_ticks_are_round_and_inside() -> None:
    assert figures.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert figures.ticks(0.71, 0.93) == pytest.approx([0.75, 0.8, 0.85, 0.9])
    assert figures.ticks(0, 2, whole=True) == [0, 1, 2]
    assert figures.ticks(3, 197, whole=True) == [50, 100, 150]


def test_an_amount_is_drawn_from_zero() -> None:
    points = [(0.0, 5.0), (1.0, 6.0)]
    free, zero = (figures.line_chart("h", "c", [figures.Series("s", points)], zero) for zero in (False, True))
    assert ">0</text>" in zero.replace(">0</text>", "", 1)  # the epoch 0, and the value 0
    assert ">0</text>" not in free.replace(">0</text>", "", 1)


def test_points_are_drawn_where_they_belong() -> None:
    """The lowest value is at the bottom, the first epoch at the left, of a frame from 0 to 10."""
    chart = figures.line_chart("h", "c", [figures.Series("s", [(0.0, 0.0), (5.0, 5.0), (10.0, 10.0)])])
    left, right = figures.LEFT, figures.WIDTH - figures.RIGHT
    top, bottom = figures.TOP, figures.HEIGHT - figures.BOTTOM
    corners = [(left, bottom), ((left + right) / 2, (top + bottom) / 2), (right, top)]
    assert 'd="M' + "{0} {1}L{0} {1} ".format(*map(float, corners[0])) in chart
    assert " ".join(f"{float(x)} {float(y)}" for x, y in corners) in chart


def test_bars_are_stacked() -> None:
    parts = [figures.Series("a", [(0.0, 1.0)]), figures.Series("b", [(0.0, 3.0)])]
    chart = figures.stacked_bars("h", "c", parts)
    bars = re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="bar s(\d)"', chart)
    (y0, height0, _), (y1, height1, _) = (tuple(map(float, bar)) for bar in bars)
    assert y1 + height1 == pytest.approx(y0)
    assert y0 + height0 == pytest.approx(figures.HEIGHT - figures.BOTTOM)
    assert height1 == pytest.approx(3 * height0, abs=0.3)


def test_thin_keeps_the_mean_and_the_limit() -> None:
    points = [(float(epoch), float(epoch % 7)) for epoch in range(1000)]
    thinned = figures.thin(points, 400)
    assert len(thinned) == 334
    assert thinned[0] == (1.0, 1.0)
    assert list(figures.thin(points[:400], 400)) == points[:400]


def test_a_long_run_says_that_means_are_drawn(tmp_path: Path) -> None:
    lines = "".join(json.dumps(epoch_line(epoch)) + "\n" for epoch in range(2500))
    page = write(tmp_path, metrics=lines)
    assert page.source.count('class="bar s1"') <= figures.MOST_BARS + 1
    assert "Means of 21 neighbouring points are drawn." in page.text
    assert len(page.source) < 200_000
