"""Run files in, one page out: complete, from a killed run, and with names that are HTML."""

from __future__ import annotations

import base64
import gzip
import json
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sancus.report import chart as charting
from sancus.report import units
from sancus.report.ages import ages_of
from sancus.report.charts.curves import curves
from sancus.report.charts.raster import raster
from sancus.report.groups import group_runs
from sancus.report.page import render, write_report
from sancus.report.run_reader import read
from sancus.report.seconds import PARTS
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
            "saved_bytes": 0,
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
                "saved_bytes": 0,
                "codec_error": 0.1 * (owner + 1),
                "codec_noise": 0.2 if direction == "forward" else None,
                "sends": 10,
                "skips": 20,
            }
            for layer in (0, 1)
            for direction in ("backward", "forward")
            for owner in range(RANKS)
        ],
        "payload_matrix": [[0 if i == j else 1000 * (i + 1) for j in range(RANKS)] for i in range(RANKS)],
        "codec_error": 0.4,
        "codec_noise": 0.2,
        "policies": {"forward": {"gap": 0.01, "max_age": 20}, "backward": {"gap": None, "max_age": 0}},
    },
    "cache": {
        "history_bytes": [100_000, 200_000, 300_000, 400_000],
        "predicted_bytes": [100_000, 200_000, 300_000, 400_000],
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
        "aggregation_seconds": 0.02,
        "dense_seconds": 0.01,
        "codec_seconds": 0.003,
        "transfer_seconds": 0.01,
        "agreement_seconds": 0.005,
        "other_seconds": 0.007,
        "compute_seconds": 0.04,
        "comm_seconds": 0.02,
        "waiting_seconds": 0.005,
        "hidden_seconds": 0.001,
        "agreement_bytes": 768,
        "parameter_bytes": 2_212_000,
        "wire_bytes": 1_234_567,
        "raw_bytes": 4_938_268,
        "sends": 2,
        "skips": 8,
        "max_age": epoch % 4,
        "max_drift": 0.01 * (epoch % 4),
        "codec_error": None if epoch % 4 else 0.4,
        "codec_noise": None if epoch % 4 else 0.2,
        "history_bytes": 400_000,
    }


METRICS = "".join(json.dumps(epoch_line(epoch)) + "\n" for epoch in range(EPOCHS))


# Owner o of layer 1 sends in every (o + 1)th epoch; layer 0 is not used, backward always sends.
DECISIONS = np.full((EPOCHS, 2, 2, RANKS), -1, np.int8)
for owner in range(RANKS):
    DECISIONS[:, 1, 0, owner] = np.arange(EPOCHS) % (owner + 1) == 0
DECISIONS[:, 1, 1] = 1
DRIFT = np.full(DECISIONS.shape, np.nan, np.float32)
DRIFT[1:, 1, 0] = 0.005
ERRORS = np.full(DECISIONS.shape, np.nan, np.float32)
ERRORS[::4, 1] = [[0.1], [0.4]]
FIGURES = 17  # of a complete run


class Page(HTMLParser):
    """What a browser would see: balanced tags, visible text, attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.pieces: list[str] = []
        self.rows: list[list[str]] = []
        self.packed: dict[str, str] = {}
        self._script: str | None = None
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []
        self.text = " ".join(self.pieces).strip()

    def charts(self) -> list[dict[str, Any]]:
        """What the script draws."""
        found: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(self.packed["charts"])))
        return found

    def chart(self, name: str) -> dict[str, Any]:
        return next(chart for chart in self.charts() if chart["name"] == name)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._script = dict(attrs).get("id") if tag == "script" else None
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            self.packed[self._script or "script"] = data
        elif "style" not in self.open:
            self.pieces.append(data)
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data


def save(directory: Path, run: Any = RUN, metrics: str | None = METRICS, decisions: bool = True) -> None:
    if run is not None:
        (directory / "run.json").write_text(run if isinstance(run, str) else json.dumps(run))
    if metrics is not None:
        (directory / "metrics.jsonl").write_text(metrics)
    if decisions:
        np.savez(directory / "decisions.npz", decisions=DECISIONS, drift=DRIFT, codec_error=ERRORS)


def write(directory: Path, run: Any = RUN, metrics: str | None = METRICS, decisions: bool = True) -> Page:
    save(directory, run, metrics, decisions)
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
    streams = [row for row in rows if row[0].startswith("layer ") and len(row) == len(head)]
    assert head == ["", "all owners", "raw", "owner 0", "owner 1", "owner 2", "owner 3"]
    assert [row[0] for row in streams] == [
        "layer 0 forward",
        "layer 0 backward",
        "layer 1 forward",
        "layer 1 backward",
    ]
    assert streams[0][4] == "2.0 kB10 of 30 sent"
    assert streams[0][1:3] == ["10.0 kB40 of 120 sent", "40.0 kB"]


def test_every_figure_says_in_words_what_it_shows(tmp_path: Path) -> None:
    page = write(tmp_path)
    for tag in ("figure", "figcaption", "h3"):
        assert page.tags.count(tag) == FIGURES, tag
    assert len([value for name, value in page.attributes if (name, value) == ("class", "about")]) == FIGURES
    assert len([value for name, value in page.attributes if (name, value) == ("class", "csv")]) == FIGURES
    labels = [value or "" for name, value in page.attributes if name == "aria-label"]
    assert "Loss against epochs. It goes from 2 to 0.06667." in labels
    assert "Train ends at 78.08 %, best 78.08 %" in page.text
    assert "Most of it: aggregation 33.3 %, dense 16.7 %, communication 16.7 %." in page.text
    told = "60.0 ms an epoch, of which 25.0 % communication and waiting, 5.0 % codec, 1.0 ms more hidden"
    assert told in page.text
    assert "In all: mean 3.4 MB an epoch, at most 3.4 MB; payloads alone: mean 1.2 MB." in page.text
    assert (
        "Largest in layer 1 backward: 0.4 in the mean. The errors of embeddings are 0.2 of what training"
        in page.text
    )
    assert "183 sends and 57 skips in 30 epochs: 23.8 % skipped. The oldest history used was 3" in page.text
    assert "Forward, 52.5 % of all uses were fresh; backward, 100.0 %" in page.text
    assert "At most 400 kB of histories on a rank, exactly as predicted" in page.text
    assert "Layer 1 forward passed its gap in 0.0 % of the decisions." in page.text
    assert "10.0 % of the edges are cut; block sends 8,124 rows" in page.text


def test_the_numbers_behind_every_figure(tmp_path: Path) -> None:
    page = write(tmp_path)
    charts = page.charts()
    assert len(charts) == FIGURES
    for chart in charts:
        lengths = {len(values) for values in chart["columns"].values()}
        assert len(lengths) == 1 and lengths != {0}, chart["name"]
    raster_columns = page.chart("Who broadcast when")["columns"]
    assert len(raster_columns["epoch"]) == 2 * RANKS * EPOCHS
    assert raster_columns["decision"].count("SKIP") == (DECISIONS == 0).sum()
    times = page.chart("Time of an epoch")["columns"]
    parts = [values[0] for name, values in times.items() if name not in ("run", "hidden communication")]
    assert times["communication"] == pytest.approx([0.01]) and times["waiting"] == pytest.approx([0.005])
    assert sum(parts) == pytest.approx(0.06), "the parts of an epoch add up to it"
    bought = page.chart("Accuracy against bytes")["columns"]
    whole = 1_234_567 + 768 + 2_212_000
    assert bought["all_bytes"][:2] == [whole, 6 * whole]  # evaluated in epochs 0 and 5
    errors = page.chart("Error of the codec")
    assert sorted(set(errors["columns"]["codec_error"])) == [0.1, 0.4]
    matrix = page.chart("Payloads from rank to rank")["columns"]
    assert sum(matrix["wire_bytes"]) == 3 * 10_000


def pipeline_run() -> dict[str, Any]:
    """A run of two stages of two ranks; the timeline of rank 3 is damaged."""
    whole = {"seconds": 1.0, "doing": [0, 1, 2, 1], "backward": [0, 0, 0, 1], "chunk": [0, 0, 0, 0]}
    whole |= {"begun": [0.0, 0.1, 0.3, 0.6], "ended": [0.1, 0.3, 0.4, 0.9]}
    facts = {"stages": 2, "ranks_a_stage": 2, "chunks": 3, "bubble_formula": 0.25}
    timeline = [whole, whole, whole, whole | {"doing": [7, None, "x", 1]}]
    means = {"stale_share": 0.125, "bubble_share": 0.4}
    return RUN | {"schedule": facts | {"timeline": timeline, "per_epoch": means}}


def test_stages_of_a_pipeline_are_drawn_over_time(tmp_path: Path) -> None:
    lines = [epoch_line(epoch) | {"stale_share": 0.125, "bubble_share": 0.4} for epoch in range(EPOCHS)]
    page = write(tmp_path, pipeline_run(), "\n".join(map(json.dumps, lines)))
    told = "3 chunks through 2 stages; stages waited 40.0 % of an epoch; (S − 1) / (K + S − 1) is 25.0 %; "
    assert told + "12.5 % of the edges were stale." in page.text
    assert ["stale edges", "12.5 % of all, mean of the epochs"] in page.rows
    assert ["stage 1, place 0", "200.0 ms", "300.0 ms", "100.0 ms", "100.0 ms", "1.0 s"] in page.rows
    assert ["stages waited", "40.0 % of an epoch (equal stages: (S − 1) / (K + S − 1) = 25.0 %)"] in page.rows
    gantt = page.chart("Stages over time")["columns"]
    assert len(gantt["chunk"]) == 13 and gantt["rank"][-1] == 3 and gantt["doing"][-1] == "backward"
    assert page.chart("Waiting and stale edges")["columns"]["stale_share"] == [0.125] * EPOCHS


def test_ages_follow_from_decisions() -> None:
    ages = ages_of(DECISIONS)
    assert ages[:6, 1, 0, 2].tolist() == [0, 1, 2, 0, 1, 2]
    assert (ages[:, 0] == -1).all() and (ages[:, 1, 1] == 0).all()
    later = np.array([1, 2, 2, 0, 0], np.int8).reshape(5, 1, 1, 1).repeat(2, axis=2)
    assert ages_of(later)[:, 0, 0, 0].tolist() == [0, 1, 1, 1, 2]
    dropped = np.zeros((3, 1, 2, 2), np.int8)
    assert (ages_of(dropped) == -1).all()


def test_cells_of_the_raster(tmp_path: Path) -> None:
    """SEND and SKIP share no cell, and every decision has one."""
    write(tmp_path)
    (chart,) = raster(group_runs([read(tmp_path)])[0])
    send, skip = (np.array(trace["z"], float) for trace in chart.traces)
    assert (
        np.isfinite(send).sum() == (DECISIONS == 1).sum()
        and np.isfinite(skip).sum() == (DECISIONS == 0).sum()
    )
    assert not (np.isfinite(send) & np.isfinite(skip)).any()
    assert send.shape == (2 * RANKS, EPOCHS) and np.nanmax(skip) == 3


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = write(tmp_path)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "a"} & set(page.tags)
    assert not {"src", "href", "action"} & {name for name, _ in page.attributes}
    assert not any(name.startswith("on") for name, _ in page.attributes)
    outside = page.source.replace(page.packed["library"], "")
    assert not any(word in outside.replace("http-equiv", "") for word in ("url(", "@import", "http"))
    assert "default-src 'none'" in page.source and "unsafe-eval" not in page.source
    assert "prefers-color-scheme: dark" in page.source


def seeded(folder: Path, seed: int, preset: str = "exact", shift: float = 0.0) -> Path:
    """A run with a score and a seed of its own."""
    directory = folder / f"{preset}-{seed}"
    directory.mkdir(parents=True)
    config = {"preset": preset, "model": "gcn", "training": {"seed": seed}, "output": {"out": str(directory)}}
    run = RUN | {"config": config, "result": RUN["result"] | {"test": 0.8 + shift}}
    lines = [epoch_line(epoch) for epoch in range(EPOCHS)]
    for line in lines:
        line["loss"] += shift
    save(directory, run, "".join(json.dumps(line) + "\n" for line in lines))
    return directory


def test_many_runs_stand_side_by_side(tmp_path: Path) -> None:
    runs = [seeded(tmp_path, seed, "exact", 0.01 * seed) for seed in range(3)]
    runs.append(seeded(tmp_path, 0, "cagnet"))
    page = Page(write_report(*runs, out=tmp_path / "all" / "report.html"))
    assert page.text.startswith("4 runs · gcn on cora")
    assert [
        "exact (3 seeds)",
        "81.00 % ± 1.00",
        "3.4 MB",
        "1.00 ×",
        "1.2 MB",
        "1.00 ×",
        "75.0 %",
        "60.0 ms",
        "3",
        "400 kB",
    ] in page.rows
    assert "2 settings with several seeds" in page.text
    names = [chart["name"] for chart in page.charts()]
    assert names.count("Who broadcast when") == 2 and names.count("Time of an epoch") == 1
    assert names.count("What the bytes buy") == 1
    loss = page.chart("Loss against epochs")
    assert loss["columns"]["series"] == ["exact"] * EPOCHS + ["cagnet"] * EPOCHS
    mean, low, high = (loss["columns"][name][0] for name in ("mean", "lowest", "highest"))
    assert (low, mean, high) == pytest.approx((2.0, 2.01, 2.02))
    assert len(loss["traces"]) == 4  # a band of two edges and a line, and one line without a band
    assert page.tags.count("details") >= 4


def test_runs_of_one_preset_are_told_apart_by_their_settings(tmp_path: Path) -> None:
    paths = [seeded(tmp_path / name, 0) for name in ("a", "b")]
    changed = json.loads((paths[1] / "run.json").read_text())
    changed["config"]["factors"] = {"partitioner": "random"}
    (paths[1] / "run.json").write_text(json.dumps(changed))
    groups = group_runs([read(path) for path in paths])
    assert [group.label for group in groups] == ["exact · partitioner None", "exact · partitioner random"]


def test_ten_runs_in_one_page_need_no_torch(tmp_path: Path) -> None:
    paths = [seeded(tmp_path, seed, f"p{seed}") for seed in range(10)]
    program = (
        "import sys; from pathlib import Path; from sancus.report.page import write_report; "
        "write_report(*map(Path, sys.argv[2:]), out=Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    out = tmp_path / "report.html"
    command = [sys.executable, "-c", program, str(out), *map(str, paths)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size < 3_000_000


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    """500 epochs × 3 layers × 16 owners, in a few MB."""
    decisions = np.random.default_rng(0).integers(0, 2, (500, 3, 2, 16)).astype(np.int8)
    np.savez(
        tmp_path / "decisions.npz", decisions=decisions, drift=np.full(decisions.shape, np.nan, np.float32)
    )
    lines = "".join(json.dumps(epoch_line(epoch)) + "\n" for epoch in range(500))
    page = write(tmp_path, metrics=lines, decisions=False)
    assert len(page.source) < 3_000_000
    assert "Drawn as means of 2 neighbouring epochs; the CSV has every one." in page.text
    assert len(page.chart("Loss against epochs")["columns"]["epoch"]) == 500
    assert len(page.chart("Loss against epochs")["traces"][0]["x"]) == 250


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
    assert "img" not in page.tags and page.tags.count("script") == 3
    (tmp_path / "other").mkdir()
    write(tmp_path / "other", RUN | {"config": {"preset": evil, "model": "gcn"}})
    both = Page(write_report(tmp_path, tmp_path / "other", out=tmp_path / "both.html"))
    assert "img" not in both.tags and both.tags.count("script") == 3 and evil in both.text
    drawn = json.dumps([chart["traces"] for chart in both.charts()])
    assert (evil not in drawn.replace("\\", "") and "&lt;" in drawn) or "<" not in evil
    assert page.tags.count("title") == 1
    assert evil not in page.source
    assert f"{evil}cora" in page.text  # shown as it is, once unescaped
    assert [f"{evil}.{evil}", evil] in page.rows
    assert [evil, evil] in page.rows
    assert [f"rows sent, plan {evil}", "1 an aggregation"] in page.rows


def test_without_metrics_the_rest_is_shown(tmp_path: Path) -> None:
    page = write(tmp_path, metrics=None)
    assert "metrics.jsonl is not there" in page.text
    assert "Loss against epochs" not in page.text and "Who broadcast when" in page.text
    assert ["test accuracy", "81.34 %"] in page.rows


def test_a_truncated_last_line_is_left_out(tmp_path: Path) -> None:
    page = write(tmp_path, metrics=METRICS + '{"epoch": 30, "loss": 0.0')
    assert "metrics.jsonl: line 31 is not a complete record and left out." in page.text
    assert page.chart("Loss against epochs")["columns"]["epoch"][-1] == 29


def test_several_bad_lines_are_counted(tmp_path: Path) -> None:
    page = write(tmp_path, metrics="[1]\n\nnull\n" + METRICS + "{}")
    assert "metrics.jsonl: 3 lines, the first of them 1, are not a complete record and left out." in page.text
    assert page.tags.count("figure") == FIGURES


def test_a_repeated_epoch_counts_once_and_last(tmp_path: Path) -> None:
    again = json.dumps(epoch_line(29) | {"loss": 0.5})
    page = write(tmp_path, metrics=METRICS + again + "\n" + json.dumps(epoch_line(30)) + "\n")
    columns = page.chart("Loss against epochs")["columns"]
    assert columns["epoch"] == list(range(EPOCHS + 1)) and columns["mean"][29] == 0.5


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
    assert "Loss against epochs" in page.text and "Who broadcast when" in page.text


def test_a_run_killed_before_its_end_has_no_result(tmp_path: Path) -> None:
    started = {key: RUN[key] for key in ("config", "command", "versions", "hardware", "graph", "partition")}
    page = write(tmp_path, started, decisions=False)
    assert "run.json has no result, communication, cache, memory." in page.text
    assert "decisions.npz is not there: who sent when is unknown." in page.text
    assert ["partitioner", "metis"] in page.rows
    assert RUN["command"] in page.text


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half", b"noise"])
def test_damaged_decisions_are_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "decisions.npz").write_bytes(content)
    page = write(tmp_path, decisions=False)
    assert "decisions.npz cannot be read" in page.text
    assert "Who broadcast when" not in page.text and "Loss against epochs" in page.text


def test_decisions_of_a_killed_run_come_from_its_logs(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for owner in range(RANKS):
        lines = []
        for epoch in range(EPOCHS):
            answer = "SEND" if DECISIONS[epoch, 1, 0, owner] else "SKIP"
            errors = [None if math.isnan(error) else float(error) for error in ERRORS[epoch, 1, :, owner]]
            forward = [1, "forward", answer, epoch or None, 0.005, errors[0]]
            backward = [1, "backward", "SEND", epoch or None, None, errors[1]]
            lines.append(json.dumps({"epoch": epoch, "streams": [forward, backward]}))
        (logs / f"rank-{owner}.jsonl").write_text("\n".join([*lines, '{"epoch": 31, "streams": [[', "[1]"]))
    page = write(tmp_path, decisions=False)
    assert "decisions.npz is not there: who sent when is taken from the logs of the ranks." in page.text
    assert page.tags.count("figure") == FIGURES
    assert "183 sends and 57 skips in 30 epochs" in page.text
    files = read(tmp_path)
    np.testing.assert_array_equal(files.decisions, DECISIONS)
    np.testing.assert_array_equal(files.drift, DRIFT)
    np.testing.assert_array_equal(files.errors, ERRORS)


NEW = (*PARTS, "hidden_seconds")


def test_a_run_of_an_older_version(tmp_path: Path) -> None:
    """What it did not measure is unknown, not 0: its time is split as far as it was."""
    np.savez(tmp_path / "decisions.npz", decisions=DECISIONS)
    old = [{key: value for key, value in epoch_line(epoch).items() if key not in NEW} for epoch in range(3)]
    page = write(tmp_path, metrics="".join(json.dumps(line) + "\n" for line in old), decisions=False)
    assert f"metrics.jsonl has no {', '.join(NEW)}: an older version wrote it." in page.text
    assert "decisions.npz has no drift by stream" in page.text
    assert page.tags.count("figure") == FIGURES - 2
    times = page.chart("Time of an epoch")["columns"]
    assert {name: values for name, values in times.items() if name != "run"} == {
        "compute": pytest.approx([0.04]),
        "communication": pytest.approx([0.02]),
        "waiting": [0.0],
        "hidden communication": [0.0],
    }
    assert "communication and waiting, 5.0 % codec" not in page.text


def test_runs_of_both_versions_side_by_side(tmp_path: Path) -> None:
    """Parts that one of them does not know are left open in its row."""
    new, old = seeded(tmp_path, 0, "exact"), seeded(tmp_path, 0, "cagnet")
    lines = [{key: value for key, value in epoch_line(epoch).items() if key not in NEW} for epoch in range(3)]
    (old / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = Page(write_report(new, old, out=tmp_path / "both.html"))
    times = page.chart("Time of an epoch")["columns"]
    assert times["aggregation"] == [pytest.approx(0.02), None]
    assert times["compute"] == [None, pytest.approx(0.04)]


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
        save(tmp_path, RUN | {key: junk})
        assert render([read(tmp_path)])
        for inner in value if isinstance(value, dict) else ():
            save(tmp_path, RUN | {key: value | {inner: junk}})
            assert render([read(tmp_path)])


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0, -3.0, 1e300])
@pytest.mark.parametrize("count", [1, 2])
def test_any_loss_can_be_drawn(tmp_path: Path, loss: float, count: int) -> None:
    lines = [
        json.dumps({"epoch": epoch, "loss": loss, "compute_seconds": 0, "comm_seconds": 0})
        for epoch in range(count)
    ]
    page = write(tmp_path, metrics="\n".join(lines))
    assert page.charts()  # JSON, so every number is finite
    assert ("Loss against epochs" in page.text) == math.isfinite(loss)
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
        ("all bytes", "3.4 MB an epoch, 103 MB in all"),
        ("wire bytes", "1.2 MB an epoch, 37.0 MB in all"),
        ("raw bytes", "4.9 MB an epoch, 148 MB in all (payload alone: 4.0 times the wire bytes)"),
        ("agreement bytes", "768 B an epoch, 23.0 kB in all"),
        ("parameter bytes", "2.2 MB an epoch, 66.4 MB in all"),
        ("evaluation bytes", "5.0 MB in all"),
        ("sends", "2.5 an epoch, 75 in all"),
        ("skips", "7.5 an epoch, 225 in all (75.0 % of all decisions)"),
        ("codec error", "0.4 of a payload's size (layer 0 backward, owner 3, the worst)"),
        ("codec noise", "0.2: of 1, which training stands"),
        ("saved by skipping", "0 B in all (0.0 % of all bytes under always; of the payload alone 0.0 %)"),
        ("time", "60.0 ms an epoch, 1.8 s in all"),
        ("history a rank", "at most 400 kB (at most 0.4 % of peak memory)"),
        ("peak memory a rank", "at most 130 MB"),
    ]


def test_a_ratio_is_of_all_bytes_with_the_payload_named() -> None:
    """Streams of 100 B on the wire, 800 B raw, one of them sent in every second epoch; 300 B beside them."""
    streams = [{"wire_bytes": 100, "raw_bytes": 800, "saved_bytes": saving} for saving in (0, 100)]
    total = {"wire_bytes": 200, "agreement_bytes": 100, "parameter_bytes": 200, "saved_bytes": 100}
    run = {"communication": {"total": total, "streams": streams}}
    rows = dict(bill(run))
    assert rows["all bytes"] == "500 B in all"
    assert (
        rows["times fewer"]
        == "5.40 × fewer than with every payload sent in full precision; payload alone 12.0 ×"
    )
    assert rows["saved by skipping"].endswith(
        "(16.7 % of all bytes under always; of the payload alone 33.3 %)"
    )
    coded = {"communication": {"total": total | {"raw_parameter_bytes": 1000}, "streams": streams}}
    rows = dict(bill(coded))
    assert rows["raw parameter bytes"] == "1.0 kB in all (5.0 times the parameter bytes)"
    assert rows["times fewer"].startswith("7.00 × fewer than"), "parameters in full are 800 B more"
    streams[0].pop("saved_bytes")
    assert "times fewer" not in dict(bill(run)), "an older version did not count it"


def test_where_the_time_went() -> None:
    """All seven parts, with the share of the codec (Sylvie, Figure 10); of an older run what is known."""
    parts = {
        "aggregation": 4,
        "dense": 3,
        "codec": 1,
        "transfer": 5,
        "waiting": 2,
        "agreement": 0,
        "other": 5,
    }
    result = {f"{name}_seconds_per_epoch": value / 1000 for name, value in parts.items()}
    assert dict(bill({"result": result}))["of an epoch's time"] == (
        "aggregation 4.0 ms, dense 3.0 ms, codec 1.0 ms (5.0 %), communication 5.0 ms, waiting 2.0 ms, "
        "other 5.0 ms"
    )
    old = {
        "compute_seconds_per_epoch": 0.03,
        "comm_seconds_per_epoch": 0.02,
        "waiting_seconds_per_epoch": 0.01,
    }
    assert (
        dict(bill({"result": old}))["of an epoch's time"]
        == "compute 30.0 ms, communication 10.0 ms, waiting 10.0 ms"
    )
    assert bill({"result": dict.fromkeys(result)}) == []


def test_a_codec_that_is_too_coarse_is_said_first(tmp_path: Path) -> None:
    noisy = "".join(json.dumps(epoch_line(epoch) | {"codec_noise": 1.25}) + "\n" for epoch in range(EPOCHS))
    page = write(tmp_path, metrics=noisy)
    assert "The codec's rounding errors were up to 1.25 times what training was seen to stand" in page.text
    assert "rounding errors" not in write(tmp_path).text


def test_the_first_card_is_all_bytes(tmp_path: Path) -> None:
    page = write(tmp_path)
    cards = page.source.partition('class="tiles">')[2].partition("</dl>")[0]
    assert cards.startswith("<div><dt>all bytes an epoch</dt><dd>3.4 MB</dd></div>")
    assert "<dt>payload alone</dt><dd>1.2 MB</dd>" in cards


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


def test_labels_hold_no_markup() -> None:
    assert charting.label("<b>&") == "&lt;b&gt;&amp;"
    assert len(charting.label("x" * 100)) == 48


def test_thin_keeps_the_mean_and_the_gaps() -> None:
    assert charting.thinning(1000, 400) == 3 and charting.thinning(400, 400) == 1
    assert charting.thin([1.0, 3.0, None, None, 5.0], 2) == [2.0, None, 5.0]
    assert charting.thin([1.0, None], 1) == [1.0, None]


def test_charts_without_data_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert curves(group_runs([read(tmp_path)])) == []
