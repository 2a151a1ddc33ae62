"""The commands of the documentation, as a reader would copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.helpers.command import TOP

DOCS = tuple(str(path.relative_to(TOP)) for path in sorted((TOP / "docs").rglob("*.md")))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS)
PROGRAMS = ("sancus", "torchrun", "mpiexec", "srun", "make")


@dataclass(frozen=True)
class Command:
    """One command of a page, without variables before it and comments after it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def sancus(self) -> tuple[str, ...] | None:
        """The arguments of `sancus` in it, whoever launches it; None for another program."""
        words = list(self.words)
        for place, word in enumerate(words):
            if word == "sancus" and (place == 0 or words[0] != "make"):
                return tuple(words[place + 1 :])
        return None


def commands() -> list[Command]:
    """Of all pages, in order."""
    return [command for page in PAGES for command in _commands_of(page)]


def _commands_of(page: str) -> Iterator[Command]:
    for line in _code_lines((TOP / page).read_text()):
        command = re.sub(r"^([A-Z_]+=\S* )*", "", line)
        if command.split(" ")[0] in PROGRAMS:
            yield Command(page, tuple(shlex.split(command, comments=True)))


def _code_lines(text: str) -> Iterator[str]:
    """Indented lines and those of ```bash blocks; a line that ends with a backslash goes on."""
    fence: str | None = None
    pending = ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = None if fence is not None else line[3:].strip()
            continue
        if not (fence in ("bash", "console", "sh") or (fence is None and line.startswith("    "))):
            continue
        whole = pending + line.strip()
        pending = whole[:-1] if whole.endswith("\\") else ""
        if not pending:
            yield whole
