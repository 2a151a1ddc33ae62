"""Every mutant of the catalogue still fits the code; whether it is noticed is `make mutants`' affair."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import TOP, Mutant, read_catalogue

MUTANTS = read_catalogue()


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_fits_the_code(mutant: Mutant) -> None:
    assert (TOP / mutant.file).read_text().count(mutant.before) == 1
    assert mutant.before != mutant.after
    assert mutant.loses and mutant.tests
    for argument in mutant.tests:
        if argument.startswith("tests/"):
            assert (TOP / argument.partition("::")[0]).exists(), argument


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


def test_a_mutant_changes_its_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    mutant = Mutant("one", "a.py", "x = 1", "x = 2", "the number", ("tests",))
    mutant.apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 2\n"
    with pytest.raises(AssertionError, match="stands 0 times"):
        mutant.apply(tmp_path)
