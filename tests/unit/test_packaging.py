"""What must hold for a fresh clone to install the same thing everywhere."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import sancus

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!]+)")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    pins = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        pin = PIN.fullmatch(line)
        assert pin, f"{line!r} is not name==version (no local version, no URL, no range)"
        pins[canonical(pin["name"])] = pin["version"]
    return pins


def test_setup_imports_only_setuptools_and_the_standard_library() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    outside = {name.split(".")[0] for name in names} - sys.stdlib_module_names
    assert outside == {"setuptools"}


def test_version_has_one_source() -> None:
    shown = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split()[-1] == sancus.__version__
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert citation is not None and citation[1] == sancus.__version__, "a release changes CITATION.cff, too"
    for name in ("setup.py", "pyproject.toml", "Makefile"):
        assert f'"{sancus.__version__}"' not in (ROOT / name).read_text()


def test_lock_pins_exactly_what_the_package_asks_for() -> None:
    extras = project()["optional-dependencies"]
    wanted = [*project()["dependencies"], *extras["mpi"], *extras["dev"], "setuptools", "wheel"]
    names = {canonical(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in wanted}
    assert names <= locked().keys()


def test_lock_and_makefile_agree_on_torch() -> None:
    version = re.search(r"^TORCH := (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert version is not None
    assert locked()["torch"] == version[1]


def test_setup_holds_nothing_but_the_library() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text())
    call = next(
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup"
    )
    assert {keyword.arg for keyword in call.keywords} == {"ext_modules", "cmdclass"}


def test_nothing_but_torch_sparse_is_missing_from_the_development_requirements() -> None:
    """Else tests are skipped on a fresh machine, and nobody sees them fail."""
    wanted = {
        canonical(name)
        for name in ("torch-geometric", "tensorboard", "websocket-client", "pymetis", "mpi4py")
    }
    assert wanted <= locked().keys()


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()
