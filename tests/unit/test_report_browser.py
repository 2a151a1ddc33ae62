"""The report in a real browser: nothing fails, nothing is fetched, every figure is drawn and can be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sancus.report.page import write_report
from tests.helpers.browser import Tab, browser
from tests.unit.test_report import DECISIONS, EPOCHS, FIGURES, RANKS, RUN, seeded, write

pytestmark = pytest.mark.slow  # a browser takes a core of its own
PHONE, DESKTOP = 375, 1280


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of one preset, one of another whose name is markup, and a run that was killed."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [seeded(folder, seed, "exact", 0.01 * seed) for seed in range(2)]
    runs.append(seeded(folder, 0, "<img src=x onerror=alert(1)>".replace("/", ""), 0.02))
    broken = folder / "killed"
    broken.mkdir()
    (broken / "metrics.jsonl").write_text((runs[0] / "metrics.jsonl").read_text()[:4000])
    return write_report(*runs, broken, out=folder / "report.html")


def marks(tab: Tab, heading: str, selector: str) -> int:
    """How many marks a figure has."""
    found: int = tab.value(
        f"""[...document.querySelectorAll('figure')]
        .filter(f => f.querySelector('h3').textContent === '{heading}')
        .reduce((sum, f) => sum + f.querySelectorAll('{selector}').length, 0)"""
    )
    return found


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_drawn(tab: Tab, page: Path, width: int, dark: bool) -> None:
    tab.open(page, width=width, dark=dark)
    tab.draw_everything()
    assert (tab.errors, tab.requests) == ([], [])
    assert tab.value("document.querySelectorAll('.plot .main-svg').length") >= FIGURES
    lines = "g.scatterlayer .js-line"
    bars = "g.barlayer .point path"
    for axis in ("epochs", "seconds", "bytes"):
        assert marks(tab, f"Accuracy against {axis}", lines) == 3
        assert marks(tab, f"Loss against {axis}", lines) == 1
    assert marks(tab, "Who broadcast when", "g.heatmaplayer image") == 2  # SEND and SKIP
    assert marks(tab, "Time of an epoch", bars) == 7 + 1  # and what was hidden
    assert marks(tab, "Time, epoch by epoch", bars) == 7 * EPOCHS
    assert marks(tab, "Error of the codec", lines) == 2 * 3
    assert marks(tab, "Bytes by layer and direction", bars) == 2 * 4
    assert marks(tab, "Bytes, epoch by epoch", "g.scatterlayer .js-fill, g.scatterlayer .fills path") >= 3
    assert marks(tab, "Drift against its gap", lines) == 3
    assert marks(tab, "Ages", bars) == 2 * 4
    assert marks(tab, "Cache memory a rank", bars) == 2 * RANKS
    assert marks(tab, "Payloads from rank to rank", "g.heatmaplayer image") == 1
    assert marks(tab, "Payloads from rank to rank", ".heatmap-label") == RANKS * (RANKS - 1)
    assert marks(tab, "The partition", bars) == 2 * RANKS
    assert tab.value("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"


def test_hover_shows_values(tab: Tab, page: Path) -> None:
    tab.open(page, width=DESKTOP)
    tab.value("document.getElementById('plot-1').scrollIntoView({block: 'center'})")
    tab.wait_for("!!document.querySelector('#plot-1 g.heatmaplayer image')")
    place = tab.value(
        "(() => { const box = document.querySelector('#plot-1 .nsewdrag').getBoundingClientRect();"
        " return [box.x + box.width * 2.5 / 30, box.y + box.height * 2.5 / 8]; })()"
    )
    tab.move(*place)
    tab.wait_for("!!document.querySelector('#plot-1 .hoverlayer .hovertext')")
    told = tab.value("document.querySelector('#plot-1 .hoverlayer').textContent")
    assert DECISIONS[2, 1, 0, 2] == 0
    assert "epoch 2, layer 1 forward, owner 2" in told and "SKIP, age 2" in told


def test_the_theme_can_be_switched(tab: Tab, page: Path) -> None:
    tab.open(page, width=DESKTOP)
    tab.value("document.getElementById('plot-0').scrollIntoView()")
    tab.wait_for("!!document.querySelector('#plot-0 g.barlayer .point path')")
    ground = "getComputedStyle(document.body).backgroundColor"
    bar = "document.querySelector('#plot-0 g.barlayer .point path').style.fill"
    before = tab.value(ground), tab.value(bar)
    tab.value("document.getElementById('theme').click()")
    tab.wait_for(f"{bar} !== {before[1]!r}")
    assert tab.value(ground) != before[0]
    assert tab.value("document.documentElement.dataset.theme") == "dark"
    tab.value("document.getElementById('theme').click()")
    tab.wait_for(f"{bar} === {before[1]!r}")
    assert (tab.errors, tab.requests) == ([], [])


def test_a_legend_hides_and_shows(tab: Tab, page: Path) -> None:
    tab.open(page, width=DESKTOP)
    tab.draw_everything()
    lines = "document.querySelectorAll('#plot-2 g.scatterlayer .js-line').length"
    key = "document.querySelector('.key[data-chart=\"2\"]')"
    assert tab.value(lines) == 3
    tab.value(f"{key}.click()")
    tab.wait_for(f"{lines} === 2")
    assert tab.value(f"{key}.getAttribute('aria-pressed')") == "false"
    tab.value(f"{key}.click()")
    tab.wait_for(f"{lines} === 3")


def test_csv_is_one_click_away(tab: Tab, page: Path) -> None:
    tab.open(page, width=DESKTOP)
    text = tab.value(
        """(async () => {
          const make = URL.createObjectURL; let kept; HTMLAnchorElement.prototype.click = () => {};
          URL.createObjectURL = (blob) => { kept = blob; return make(blob); };
          const figures = [...document.querySelectorAll('figure')];
          const matrix = figures.find(f => f.textContent.includes('rank to rank'));
          matrix.querySelector('.csv').click();
          return await kept.text();
        })()"""
    )
    lines = text.split("\r\n")
    assert lines[0] == "owner,receiver,wire_bytes" and lines[2] == "0,1,1000"
    assert len(lines) == RANKS * RANKS + 2


def test_many_runs_and_names_that_are_markup(tab: Tab, many: Path) -> None:
    tab.open(many, width=PHONE)
    tab.draw_everything()
    assert (tab.errors, tab.requests) == ([], [])
    assert tab.value("document.images.length") == 0
    assert "<img src=x" in tab.value("document.body.textContent")
    labels = tab.value("[...document.querySelectorAll('svg text')].map(t => t.textContent).join()")
    assert "<img src=x" in labels
    assert "killed is incomplete" in tab.value("document.body.textContent")
    assert tab.value("document.documentElement.scrollWidth") <= PHONE
    assert marks(tab, "What the bytes buy", "g.scatterlayer .points path") == 2
    assert RUN["command"] in tab.value("document.body.textContent")


def test_paper_shows_every_figure_in_light_colours(tab: Tab, page: Path) -> None:
    tab.open(page, width=DESKTOP)
    tab.value("document.documentElement.dataset.theme = 'dark'")
    tab.value("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.value("document.querySelectorAll('.plot .main-svg').length") >= FIGURES
    assert tab.value("document.documentElement.dataset.theme") == "light"
    tab.value("window.dispatchEvent(new Event('afterprint'))")
    assert tab.value("document.documentElement.dataset.theme") == "dark"
    pdf = tab.call("Page.printToPDF", printBackground=True)
    assert len(pdf["data"]) > 50_000
