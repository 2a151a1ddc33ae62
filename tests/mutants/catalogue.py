"""The catalogue of mutants: small changes of meaning, each with the tests that must notice it.

`catalogue.toml` holds them, in the words of what a user would lose. A mutant is text in one file that is
replaced by other text; the text must stand there exactly once, so that a mutant which no longer fits the code
is found by `tests/unit/test_mutants.py` and not by an hour of tests that say nothing.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

TOP = Path(__file__).parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True)
class Mutant:
    """One small change of meaning."""

    name: str
    file: str  # from the top of the repository
    before: str  # stands once in the file
    after: str
    loses: str  # what a user would lose, if nobody noticed
    tests: tuple[str, ...]  # arguments of pytest: where it is noticed
    survives: str = ""  # why it cannot be noticed; "" for all that must be

    def control(self) -> Mutant:
        """The same tests without the change: they must pass."""
        return replace(self, name=f"control of {self.name}", after=self.before, survives="nothing is changed")

    def apply(self, top: Path) -> None:
        """Change the file below `top`."""
        path = top / self.file
        text = path.read_text()
        count = text.count(self.before)
        assert count == 1, f"mutant {self.name}: its text stands {count} times in {self.file}, not once"
        path.write_text(text.replace(self.before, self.after))


def read_catalogue(path: Path = CATALOGUE) -> list[Mutant]:
    """All mutants, in the order of the file."""
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
