"""The settings of every experiment make sense before anyone waits two hours for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import documents, summary
from experiments.engine import tables
from experiments.engine.experiment import REPEATS, SETTINGS_FILE, Table, names, read
from experiments.engine.figures import FIGURES, relative_figures
from experiments.engine.results import raster
from experiments.network.hosts import bits_per_second
from sancus.config.resolve import make_config
from sancus.errors import UserError
from sancus.runs.check import check
from tests.helpers.command import TOP

FOLDER = TOP / "experiments"


@pytest.mark.parametrize("quick", [False, True], ids=["full", "quick"])
@pytest.mark.parametrize("name", names(FOLDER))
def test_an_experiment_is_sound(name: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TOP)
    experiment = read(FOLDER / name, quick=quick)
    labels = [case.labels for case in experiment.cases]
    assert len({str(one) for one in labels}) == len(labels) > 1
    for case in experiment.cases:
        if case.place.link != "none":
            assert bits_per_second(case.place.link) > 0
        check("synthetic", make_config(**case.flags), launched=True)
        others = [case.labels | dict(one) for one in (experiment.baseline, experiment.score) if one]
        assert not others or any(other in labels for other in others)
    for table in experiment.tables:
        axes = {*table.rows, *table.where, *([table.across] if table.across else [])}
        assert axes <= set(labels[0]) - {REPEATS} and set(table.figures) <= set(FIGURES)


@pytest.mark.parametrize("name", [*names(FOLDER), "peers", "supergcn_ranks", "gnnpipe_depth"])
def test_an_experiment_says_what_it_is_about(name: str) -> None:
    text = (FOLDER / name / "README.md").read_text()
    assert f"<!-- measured: {name} -->\n" in text and documents.END in text
    assert f"({name}/README.md)" in (FOLDER / "README.md").read_text()


def write(folder: Path, text: str) -> Path:
    (folder / "mine").mkdir()
    (folder / "mine" / SETTINGS_FILE).write_text(text)
    return folder / "mine"


def test_axes_span_cases_repeats_outermost(tmp_path: Path) -> None:
    text = """
    title = "t"
    tables = []
    [common]
    hidden = 4
    [axes]
    preset = ["a", "b"]
    seed = [0, 1]
    [axes.link]
    slow = { link = "1mbit", epochs = 2 }
    [axes.factors]
    sizes = [0, 2]
    of = { x = { plan = "halo" }, y = { codec = "int2" }, z = { plan = "block" } }
    [quick.axes]
    seed = [7]
    """
    cases = read(write(tmp_path, text), quick=False).cases
    assert [case.labels["seed"] for case in cases] == ["0"] * 8 + ["1"] * 8
    assert [case.labels["factors"] for case in cases[:4]] == ["nothing", "x + y", "x + z", "y + z"]
    assert cases[1].flags == {"hidden": 4, "preset": "a", "seed": 0, "epochs": 2} | {
        "plan": "halo",
        "codec": "int2",
    }
    assert (cases[1].place.link, cases[1].place.ranks) == ("1mbit", 4)
    assert "--preset a" in cases[1].command() and "--ranks 4" in cases[1].command()
    assert {case.flags["seed"] for case in read(tmp_path / "mine", quick=True).cases} == {7}


def test_an_unknown_experiment_names_the_others(tmp_path: Path) -> None:
    write(tmp_path, "")
    with pytest.raises(UserError, match="choose from mine"):
        read(tmp_path / "yours", quick=False)


def case(seed: int, preset: str, **figures: float | None) -> dict[str, Any]:
    return {"labels": {"seed": str(seed), "preset": preset}, "figures": figures}


def test_a_table_shows_the_spread_and_who_did_not_arrive() -> None:
    cases = [
        case(0, "a", seconds=1.0, test=80.0, sooner=2.0),
        case(0, "b", seconds=4.0, test=70.0, sooner=None),
        case(1, "a", seconds=3.0, test=82.0, sooner=None),
        case(1, "b", seconds=4.0, test=70.0, sooner=None),
    ]
    rows = tables.make(Table(["preset"], ["seconds", "test", "sooner"]), cases)
    assert rows[1:] == [
        ["a", "2 (1 to 3)", "81.0 ± 1.4", "2.0 × (1 of 2)"],
        ["b", "4", "70.0 ± 0.0", tables.NOTHING],
    ]


def test_a_promise_counts_the_graphs_that_keep_it() -> None:
    """One that was not reached in every repeat is not kept."""
    graphs = {"a, 1 Gbit/s": (20.0, 30.0), "b, 1 Gbit/s": (14.0, 15.0), "c, 1 Gbit/s": (None, 99.0)}
    cases = [
        {"labels": {"seed": str(seed), "preset": "lean", "graph": graph}, "figures": {"sooner": sooner}}
        for graph, repeats in graphs.items()
        for seed, sooner in enumerate(repeats)
    ]
    table = summary.promises({"time_to_accuracy": {"cases": cases}})
    assert (
        "| lean sooner than cagnet over 1 Gbit/s: 15 × | on 1 of 3 graphs: a 25.0 × (20.0 × to 30.0 ×); b"
        in table
    )


def test_time_to_the_accuracy_of_the_baseline() -> None:
    def run(seconds: float, scores: list[float]) -> dict[str, Any]:
        epochs = [{"epoch": e, "seconds": seconds, "val": val} for e, val in enumerate(scores)]
        return {"epochs": epochs, "val": max(scores)}

    names = ("test", "seconds", "compute_seconds", "comm_seconds")
    own: dict[str, float | None] = dict.fromkeys((*names, "all_mb", "mean_mb", "wire_mb", "forward_mb"), 1.0)
    base, fast, never = run(4.0, [0.5, 0.8, 0.79]), run(1.0, [0.4, 0.6, 0.795]), run(1.0, [0.1, 0.2, 0.3])
    assert relative_figures(fast, own, base, own, 0.01)["sooner"] == pytest.approx(8 / 3)
    assert relative_figures(fast, own, base, own, 0.0)["sooner"] is None
    assert relative_figures(never, own, base, own, 0.01)["seconds_to_target"] is None
    assert relative_figures(base, own, base, own, 0.0)["epochs_to_target"] == 2


def test_a_raster_leaves_out_what_is_never_used() -> None:
    decisions = [[[[1, 0], [-1, -1]]], [[[0, 1], [-1, -1]]], [[[-1, 1], [-1, -1]]]]
    assert raster(decisions) == {"layer 0, forward, owner 0": "10-", "layer 0, forward, owner 1": "011"}
