"""Documents whose numbers are measured: every block of them is rendered from `results.json`.

    python -m experiments.documents              # writes all blocks, and RESULTS.md
    python -m experiments.documents --check      # names every number that is not what results.json gives

A block stands between two marks. `<!-- measured: lean.headline -->` holds what the function `headline` in
`experiments/lean/findings.py` says of `experiments/lean/results.json`; `<!-- measured: lean -->` the command,
the machine, the tables of `experiment.toml`, and what `text` says. Nobody writes into a block by hand.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from experiments import summary
from experiments.engine import tables
from experiments.engine.experiment import read
from experiments.engine.measured import EXPERIMENTS, Measured

TOP = EXPERIMENTS.parent
BENCHES = {"kernels": "tests.bench.table --write", "guards": "tests.bench.guards"}
END = "<!-- end of measured -->"
BLOCK = re.compile(rf"<!-- measured: (?P<name>[\w.]+) -->\n.*?{re.escape(END)}", re.DOTALL)
NUMBER = re.compile(r"[+−]?\d{1,3}(?: \d{3})+(?!\d)|[+−]?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Difference:
    """A line that is not what the results give."""

    path: Path
    line: int
    stated: str
    computed: str

    def __str__(self) -> str:
        place = f"{self.path.relative_to(TOP) if self.path.is_relative_to(TOP) else self.path}:{self.line}"
        pairs = list(zip(NUMBER.findall(self.stated), NUMBER.findall(self.computed), strict=False))
        numbers = [f"states {one}, computed {other}" for one, other in pairs if one != other]
        return f"{place}: {'; '.join(numbers) or f'states {self.stated!r}, computed {self.computed!r}'}"


def block(name: str) -> str:
    """What stands between the marks of a block; who has not measured yet says so."""
    experiment, _, function = name.partition(".")
    try:
        return _said(experiment, function)
    except FileNotFoundError as error:
        return f"Not measured yet with these settings: `{_command(Path(error.filename).parent.name)}`."


def _command(experiment: str) -> str:
    if experiment in BENCHES:
        return f"python -m {BENCHES[experiment]}"
    alone = (EXPERIMENTS / experiment / "__main__.py").is_file()
    return f"python -m experiments.{experiment}" if alone else f"python -m experiments {experiment}"


def _said(experiment: str, function: str) -> str:
    measured, findings = Measured.of(experiment), _findings(experiment)
    if function:
        text: str = getattr(findings, function)(measured)
        return text
    if findings and hasattr(findings, "section"):
        parts = [findings.section(measured)]
    else:
        parts = [tables.section(measured.content, read(EXPERIMENTS / experiment, quick=False).tables)]
    if findings and hasattr(findings, "text"):
        parts.append(findings.text(measured))
    return "\n\n".join(parts)


def _findings(experiment: str) -> ModuleType | None:
    name = f"experiments.{experiment}.findings"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def render(document: str) -> str:
    """A document with every block as its results give it."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- measured: {match['name']} -->\n\n{block(match['name'])}\n\n{END}"

    return BLOCK.sub(fill, document)


def expected(path: Path) -> str:
    """What a document should be."""
    return summary.text() if path == TOP / summary.FILE else render(path.read_text())


def documents() -> list[Path]:
    """Every document that may hold a block; what is written from another one comes last."""
    pages = [
        TOP / "README.md",
        *sorted((TOP / "docs").glob("*.md")),
        *sorted(EXPERIMENTS.glob("*/README.md")),
    ]
    return [*pages, EXPERIMENTS / "README.md", TOP / summary.FILE]


def differences(path: Path) -> Iterator[Difference]:
    """Where a document differs from what it should be."""
    stated, computed = path.read_text().splitlines(), expected(path).splitlines()
    matcher = difflib.SequenceMatcher(None, stated, computed, autojunk=False)
    for kind, begin, end, other_begin, other_end in matcher.get_opcodes():
        if kind == "equal":
            continue
        for offset in range(max(end - begin, other_end - other_begin)):
            mine = stated[begin + offset] if begin + offset < end else ""
            theirs = computed[other_begin + offset] if other_begin + offset < other_end else ""
            yield Difference(path, min(begin + offset, max(end - 1, begin)) + 1, mine, theirs)


def write(paths: Sequence[Path]) -> None:
    """Write the blocks of these documents again."""
    for path in paths:
        text = expected(path)
        if text != path.read_text():
            path.write_text(text)


def main() -> int:
    """Read the flags; write, or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    flags = parser.parse_args()
    if not flags.check:
        write(documents())
        return 0
    wrong = [difference for path in documents() for difference in differences(path)]
    for difference in wrong:
        print(difference, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
