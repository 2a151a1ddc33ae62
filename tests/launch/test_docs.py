"""The documentation: every command can be read, some pages are walked for real, nothing is out of date."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sancus
from sancus.cli import flags_page as flags
from sancus.cli.app import app
from sancus.metrics.declared import METRICS
from tests.helpers.command import TIMEOUT, TOP, environment, program
from tests.helpers.documents import DOCS, PAGES, Command, commands
from tests.helpers.walk import furnish, walk

COMMANDS = [command for command in commands() if command.sancus is not None]
TARGETS = re.findall(r"^([a-z]+):.*##", (TOP / "Makefile").read_text(), re.M)
SMALL_PNG = 200_000
LONGEST_README = 900


def test_commands_were_found() -> None:
    assert len(COMMANDS) > 40 and {command.page for command in COMMANDS} >= {"README.md", "docs/start.md"}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_command_can_be_read(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verb, flags, values, presets and plug-ins exist; nothing is run."""
    furnish(tmp_path, command.page)
    monkeypatch.chdir(tmp_path)
    assert command.sancus is not None
    words = [re.sub(r"\$[A-Z_]+", "4", word) for word in command.sancus]
    _, bound, *_ = app.parse_args(words, exit_on_error=False, print_error=False)
    inner = bound.arguments.get("flags", ())
    if inner:
        app.parse_args(["train", "graph.npz", *inner], exit_on_error=False, print_error=False)
    for preset in bound.arguments.get("presets", ()):
        app.parse_args(["train", "graph.npz", "--preset", preset], exit_on_error=False, print_error=False)


def test_every_make_target_exists() -> None:
    made = [command.words[1] for command in commands() if command.words[0] == "make"]
    assert made and set(made) <= set(TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["docs/start.md", "docs/plugins.md", "docs/tutorials/policy.md", "docs/tutorials/sancus.md"]
)
def test_the_first_pages_are_walked(page: str, tmp_path: Path) -> None:
    ended = [(str(command), result) for command, result in walk(page, tmp_path)]
    assert ended
    for command, result in ended:
        assert result.code == 0, f"{command}\n{result}"
    if page == "docs/start.md":
        assert (tmp_path / "report.html").stat().st_size > 1_000_000
        assert (tmp_path / "runs/compared/report.html").exists()
    if page == "docs/plugins.md":
        (losses,) = tmp_path.glob("runs/*/losses.txt")
        assert len(losses.read_text().splitlines()) == 3


def test_the_page_of_flags_is_up_to_date() -> None:
    assert (TOP / "docs/flags.md").read_text() == flags.page(), "run make docs"


def test_every_metric_is_documented() -> None:
    text = (TOP / "docs/run-files.md").read_text()
    for metric in METRICS.values():
        assert f"| `{metric.name}` | {metric.unit} | {metric.meaning} |" in text, metric.name


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = (TOP / page).parent
    text = (TOP / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) + re.findall(r'src="([^"]+)"', text):
        assert target.startswith("http") or (here / target).exists(), target


def test_every_page_is_listed_and_pictures_are_small() -> None:
    """In the list of all pages, and in the navigation of the site."""
    listed, navigation = (TOP / "docs/index.md").read_text(), (TOP / "mkdocs.yml").read_text()
    pages = [page for page in DOCS if page != "docs/index.md"]
    assert [page for page in pages if f"({page.removeprefix('docs/')})" not in listed] == []
    assert [page for page in pages if f": {page}\n" not in navigation] == []
    for picture in (TOP / "docs").glob("*.png"):
        assert picture.stat().st_size < SMALL_PNG, picture


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: sancus\.(\w+)$", (TOP / "docs/reference.md").read_text(), re.M)
    assert sorted(named) == sorted(sancus._PUBLIC)


def test_the_readme_is_short() -> None:
    assert len((TOP / "README.md").read_text().split()) <= LONGEST_README


def test_the_site_is_built_without_a_warning_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    """Links and anchors lead somewhere; a page loads nothing from elsewhere."""
    pages = tmp_path / "build/pages"
    subprocess.run([sys.executable, str(TOP / "docs/staging.py"), str(pages)], check=True)
    shutil.copy(TOP / "mkdocs.yml", tmp_path)
    built = subprocess.run(
        [program("mkdocs"), "build", "--strict", "--config-file", str(tmp_path / "mkdocs.yml")],
        env=environment({"NO_MKDOCS_2_WARNING": "1"}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    site = tmp_path / "build/site"
    assert 'class="doc' in (site / "docs/reference.html").read_text()
    loads = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+stylesheet[^>]+href=\"?https?:")
    assert [path for path in site.rglob("*.html") if loads.search(path.read_text())] == []
