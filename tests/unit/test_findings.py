"""Documents say what results.json gives, and sentences can be said of whatever is measured."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import documents
from experiments.engine import results
from experiments.engine.experiment import Case, names, read
from experiments.engine.figures import BILLED_BYTES, SPLIT, columns_text, own_figures
from experiments.engine.measured import EXPERIMENTS, Measured, count, listing, span
from experiments.peers import findings as peers
from experiments.supergcn_ranks import findings as ranks
from tests.helpers.command import TOP

# A number with the unit of a measurement. Settings, such as 4 ranks or 256 columns, have none of these.
STATED = re.compile(
    r"(?<![\w@:.§/-])\d[\d .]*\d? ?(?:%|×|times\b|points?\b|MB\b|GB\b|kB\b|ms\b|s\b(?!\w)|seconds?\b)"
)
QUOTED = re.compile(r"paper|promise|at least|asked", re.IGNORECASE)
FREE = ("**The paper", "**Why.", "**Must hold.", "**Here.", "**How.")  # quotes, promises and settings
MEASURED_PAGES = [
    *(TOP / "README.md", TOP / "docs/composition.md", TOP / "docs/choosing.md"),
    *sorted(EXPERIMENTS.glob("*/README.md")),
]


def test_every_number_of_every_document_is_what_results_give() -> None:
    """`make experiments-check`."""
    assert [str(one) for path in documents.documents() for one in documents.differences(path)] == []


def test_a_wrong_number_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "block", lambda name: "it sends 1 272 times fewer\n\nand 0.2 points")
    page = tmp_path / "page.md"
    mark = "<!-- measured: lean.headline -->"
    page.write_text(
        f"# Page\n\n{mark}\n\nit sends 24 times fewer\n\nand 0.2 points\n\n{documents.END}\nrest\n"
    )
    (difference,) = documents.differences(page)
    assert str(difference) == f"{page}:5: states 24, computed 1 272"
    documents.write([page])
    assert not list(documents.differences(page)) and page.read_text().endswith("rest\n")


def test_who_has_not_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Measured:
        raise FileNotFoundError(2, "no such file", str(EXPERIMENTS / name / "results.json"))

    monkeypatch.setattr(Measured, "of", staticmethod(missing))
    assert (
        documents.block("lean.headline")
        == "Not measured yet with these settings: `python -m experiments lean`."
    )
    assert "`python -m experiments.peers`" in documents.block("peers.page")


@pytest.mark.parametrize("page", MEASURED_PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_no_measured_number_is_written_by_hand(page: Path) -> None:
    text = documents.BLOCK.sub("", page.read_text())
    paragraphs = [one for one in text.split("\n\n") if not one.lstrip().startswith(FREE)]
    assert [found[0] for one in paragraphs for found in STATED.finditer(one)] == []


@pytest.mark.parametrize(
    "module", sorted(EXPERIMENTS.glob("*/findings.py")), ids=lambda path: path.parent.name
)
def test_no_sentence_has_a_number_of_its_own(module: Path) -> None:
    """But what the paper says, and what was promised."""
    assert list(_own_numbers(ast.parse(module.read_text()))) == []


def _own_numbers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for part in node.values:
                text = part.value if isinstance(part, ast.Constant) else ""
                for found in STATED.finditer(text):
                    if not QUOTED.search((before + text[: found.start()])[-100:]):
                        yield found[0]
                before += text


def test_a_number_by_hand_is_found() -> None:
    assert STATED.findall("sends 1 272 times fewer, 0.2 points, 24 ×, 61 %, 4.1 MB, 0.3 s") != []
    assert not STATED.findall("4 ranks, 256 columns, `sancus-e:1`, reddit@0.05, Table 5, 1 Gbit/s, int2")
    assert list(_own_numbers(ast.parse("f'it is 12 % of {x}'"))) == ["12 %"]
    assert not list(_own_numbers(ast.parse("f'it is {x} (paper: 12 %)'")))


def outcome(case: Case, random: np.random.Generator) -> dict[str, Any]:
    """What a run of a case might leave behind."""
    count, size, layers = 6, case.place.ranks, int(case.flags.get("layers", 2))
    seconds = ("compute_seconds", "comm_seconds", "agreement_seconds", "hidden_seconds", *SPLIT.values())
    sizes = ("wire_bytes", "boundary_bytes", "agreement_bytes", "parameter_bytes", "evaluation_bytes")
    epochs = [
        {"epoch": epoch, "seconds": 1 + random.random(), "max_age": epoch, "val": float(random.random())}
        | {name: float(random.random()) for name in seconds}
        | {name: int(random.integers(1000, 10**6)) for name in sizes}
        | {name: float(random.random()) for name in ("stale_share", "bubble_share")}
        for epoch in range(count)
    ]
    streams = [
        {"layer": layer, "direction": side, "owner": owner, "wire_bytes": 1000}
        | {"sends": int(random.integers(1, 5)), "skips": int(random.integers(5))}
        for layer in range(layers)
        for side in ("forward", "backward")
        for owner in range(size)
    ]
    best = max(range(count), key=lambda epoch: epochs[epoch]["val"])
    return {
        "test": float(random.random()),
        "val": epochs[best]["val"],
        "best_epoch": best,
        "epochs": epochs,
        "communication": {"streams": streams},
        "link_bytes": [1000] * count,
        "history_bytes": [10**6] * size,
        "peak_bytes": [10**8] * size,
        "widths": {"forward": {"0": 602, "1": 64}, "backward": {"1": 64}},
        "decisions": random.integers(0, 2, (count, layers, 2, size)).tolist(),
    }


def fabricated(name: str) -> Measured:
    """Results of an experiment that nobody ran."""
    experiment = read(EXPERIMENTS / name, quick=False)
    random = np.random.default_rng(7)
    outcomes = [outcome(case, random) for case in experiment.cases]
    return Measured(name, results.summarise(experiment, outcomes, f"python -m experiments {name}"))


def peer_runs() -> Measured:
    runs = [
        {
            "task": task,
            "who": who,
            "seed": seed,
            "seconds": [2.0, 1.0 + seed],
            "peak_bytes": 10**9,
            "test": 0.5,
        }
        | ({"all_bytes": [5, 4], "payload_bytes": [3, 2]} if who == peers.OURS else {})
        for task in ("GCN, no dropout", "GCN, dropout 0.5")
        for who in ("pyg", "dgl", peers.OURS)
        for seed in (0, 1)
    ]
    return Measured(
        "peers", results.heading("python -m experiments.peers") | {"data": "d", "title": "t", "runs": runs}
    )


def cuts() -> Measured:
    rows = [
        {"data": "d", "ranks": p, "cut_share": 0.5, "payload_rows": {"halo": 30 * p, "prepost": 20 * p}}
        for p in (2, 256)
    ]
    return Measured("supergcn_ranks", results.heading("c") | {"title": "t", "rows": rows})


def depths() -> Measured:
    sizes = {"published": 8e6, "exact": 4e6, "gnnpipe": 1e6}
    rows = [{"data": "d", "layers": layers, "nodes": 9, "all_bytes": sizes} for layers in (8, 64)]
    return Measured("gnnpipe_depth", results.heading("c") | {"title": "t", "rows": rows})


def benches() -> dict[str, Measured]:
    rows = [
        {"shape": "s", "columns": 64, "threads": 1, "clock": "wall", "product": product}
        | {"milliseconds": ms, "gathered_gb": 20.0, "stream_gb": 40.0}
        for product, ms in (("native", 10.0), ("torch CSR", 40.0))
    ]
    packing = [{"bits": width, "pack": 3.0, "unpack": 4.0} for width in (1, 2)]
    kernels = {"title": "t", "library": "l", "rows": rows, "packing": packing}
    guards = {"title": "t", "graph": "g", "ranks": 2}
    guards["rows"] = [
        {"backend": "mpi", "case": "c", "seconds": {"epoch": 0.1, "checks": 0.002, "finite": 0.001}}
    ]
    return {
        name: Measured(name, results.heading("c") | content)
        for name, content in (("kernels", kernels), ("guards", guards))
    }


def test_everything_can_be_said_of_whatever_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block of every document, on numbers that were drawn."""
    measured = {name: fabricated(name) for name in names(EXPERIMENTS)}
    measured |= {"peers": peer_runs(), "supergcn_ranks": cuts(), "gnnpipe_depth": depths(), **benches()}
    monkeypatch.setattr(Measured, "of", staticmethod(lambda name: measured[name]))
    blocks = [
        found["name"]
        for path in documents.documents()
        if path.name == "README.md" or path.parent.name == "docs"
        for found in documents.BLOCK.finditer(path.read_text())
    ]
    assert set(measured) <= {name.partition(".")[0] for name in blocks}
    for name in blocks:
        text = documents.block(name)
        assert "Not measured" not in text and "nan" not in re.findall(r"\w+", text), name


def test_the_shares_of_the_last_rank_of_the_plans() -> None:
    text = ranks.text(cuts())
    assert "grows 128.0 times" in text and "1.5 times fewer" in text


def test_hidden_embeddings_are_counted_apart() -> None:
    experiment = read(EXPERIMENTS / "sancus_table5", quick=False)
    one = outcome(experiment.cases[0], np.random.default_rng(1))
    for stream in one["communication"]["streams"]:
        hidden = stream["layer"] > 0
        stream |= {"sends": 3, "skips": 1} if hidden else {"sends": 1, "skips": 9}
    figures = own_figures(one)
    assert figures["hidden_skipped"] == 0.25 and figures["skipped_share"] == 10 / 14
    later = one["epochs"][1:]
    billed = [sum(epoch[name] for name in BILLED_BYTES) for epoch in later]
    assert figures["all_mb"] == pytest.approx(sum(billed) / len(later) / 1e6)


def test_columns_are_shown_layer_by_layer() -> None:
    widths = {"forward": {"10": 8, "2": 64, "0": 602}, "backward": {}}
    assert columns_text(widths) == "602, 64, 8 / none"


def test_words_of_numbers() -> None:
    assert span("43 %", "89 %") == "43 to 89 %" and span("1.0 ×", "1.0 ×") == "1.0 ×"
    assert count(115527.2) == "115 527" and listing(["a", "b", "c"]) == "a, b and c" and listing(["a"]) == "a"


def test_a_value_that_is_not_there_or_not_one_is_refused() -> None:
    measured = fabricated("sancus_table5")
    with pytest.raises(LookupError, match="3 values of all_share"):
        measured.value("all_share", preset="cagnet")
    with pytest.raises(LookupError, match="no value"):
        measured.span("all_share", preset="nobody")
    assert measured.flag("hidden") == "602" and measured.seeds == 3
    with pytest.raises(LookupError, match="share no --epochs"):
        measured.flag("epochs")
