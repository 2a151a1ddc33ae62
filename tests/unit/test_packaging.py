"""What must hold for a fresh clone to install the same thing everywhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import sancus
from tests.helpers.command import environment, read_run

ROOT = Path(__file__).parents[2]
PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!]+)")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def locked() -> dict[str, str]:
    return {name: version for name, (version, _) in entries().items()}


def entries(name: str = "lock.txt") -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of every package of a file of requirements."""
    text = (ROOT / "requirements" / name).read_text().replace("\\\n", "")
    pins = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        entry, *hashes = line.split()
        pin = PIN.fullmatch(entry)
        assert pin, f"{entry!r} is not name==version (no local version, no URL, no range)"
        pins[canonical(pin["name"])] = pin["version"], hashes
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
    assert names <= locked().keys() | entries("torch.txt").keys()


def test_every_package_has_its_hashes_and_torch_stands_alone() -> None:
    for name in ("lock.txt", "fuzz.txt"):
        for package, (_, hashes) in entries(name).items():
            assert hashes, f"{package} of {name} has no hash; write it with make lock"
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), package
    assert entries("torch.txt").keys() == {"torch"} and "torch" not in locked()


def test_setup_asks_pip_for_hashes() -> None:
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "/pip install" in line]
    files = {line.rpartition("requirements/")[2]: line for line in installs if "--requirement" in line}
    assert files.keys() == {"lock.txt", "torch.txt", "fuzz.txt"}
    assert {name for name, line in files.items() if "--require-hashes" in line} == {"lock.txt", "fuzz.txt"}
    both = "$(VENV)/.requirements: requirements/lock.txt requirements/torch.txt\n"
    assert both in (ROOT / "Makefile").read_text(), "an edit of either file installs both again"


def with_hashes(pins: str, index: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "requirements" / "hashes.py", "--index", index]
    return subprocess.run(command, input=pins, capture_output=True, text=True, check=False, timeout=60)


def test_hashes_are_those_of_all_files_of_a_version_and_no_other(tmp_path: Path) -> None:
    files = {
        "my_pack-1.0-cp311-cp311-linux_x86_64.whl": "a" * 64,
        "My.Pack-1.0.tar.gz": "b" * 64,
        "my_pack-1.0-py3-none-any.whl": "c" * 64,
        "my_pack-1.0.1-py3-none-any.whl": "d" * 64,
        "my_pack-1.0%2Bcpu-py3-none-any.whl": "e" * 64,
        "my_pack_more-1.0.tar.gz": "f" * 64,
    }
    links = "".join(f'<a href="../f/{file}#sha256={sha}">{file}</a>\n' for file, sha in files.items())
    (tmp_path / "my-pack").mkdir()
    (tmp_path / "my-pack" / "index.html").write_text(f'<a href="x.whl">no hash</a>{links}')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}"
        pins = ("my_pack==1.0", "My.Pack==1.0+cpu", "my-pack==2", "other==1")
        one, local, old, unknown = (with_hashes(f"# first\n\n{pin}\n", index) for pin in pins)
        server.shutdown()
    expected = [f"    --hash=sha256:{letter * 64}" for letter in "abc"]
    assert one.stdout == "# first\n" + " \\\n".join(["my_pack==1.0", *expected]) + "\n", one
    assert f"--hash=sha256:{'e' * 64}" in local.stdout and local.stdout.count("sha256") == 1
    for refused, pin in ((old, "my-pack==2"), (unknown, "other==1")):
        assert refused.returncode == 1 and refused.stderr.startswith(f"hashes: {pin}: "), refused
        assert refused.stdout == "" and refused.stderr.count("\n") == 1


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


# What is installed: from a wheel that was built from the source archive, and from a checkout.


def build(hook: str, source: Path, out: Path) -> Path:
    """A file that setuptools builds of a source tree; without the C library, which takes long to compile."""
    out.mkdir()
    code = f"import sys; from setuptools import build_meta; build_meta.{hook}(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(out)],
        cwd=source,
        env=environment({"CC": "false"}),
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git has, as far as it is installed: links stay links."""
    top = tmp_path_factory.mktemp("checkout")
    leave_out = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("sancus", "staleness", "partitioners"):
        shutil.copytree(ROOT / name, top / name, symlinks=True, ignore=leave_out)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, top / name)
    return top


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(build("build_sdist", checkout, folder / "sdist")) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.glob("sancus-*")
    return build("build_wheel", source, folder / "out")


@pytest.fixture(scope="module")
def installed(wheel: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What each way of installing puts on Python's path."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    with zipfile.ZipFile(build("build_editable", checkout, folder / "editable")) as archive:
        (link,) = [name for name in archive.namelist() if name.endswith(".pth")]
        line = archive.read(link).decode().strip()
    return {"wheel": folder, "editable": Path(line)}


def test_the_wheel_holds_every_module_once(wheel: Path) -> None:
    names = Counter(zipfile.ZipFile(wheel).namelist())
    assert max(names.values()) == 1
    packed = {name for name in names if name.endswith(".py")}
    modules = {f"sancus/{path.relative_to(ROOT / 'sancus')}" for path in (ROOT / "sancus").rglob("*.py")}
    for folder in ("staleness", "partitioners"):
        modules |= {f"sancus/{folder}/{path.name}" for path in (ROOT / folder).glob("*.py")}
    assert packed == modules


@pytest.mark.slow
@pytest.mark.parametrize("way, ranks", [("wheel", 2), ("editable", 1)])
def test_modules_of_the_users_own_break_nothing(
    way: str, ranks: int, installed: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("staleness", "partitioners"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('the module of the user was imported')\n")
    env = environment({"PYTHONPATH": str(installed[way])})
    data = "synthetic:nodes=60,features=4,classes=3"
    flags = ["--epochs", "1", "--hidden", "4", "--ranks", str(ranks), "--out", "run", "--quiet"]
    command = [sys.executable, "-m", "sancus", "train", data, *flags, "--staleness", "epoch-fixed"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert read_run(tmp_path / "run")["hardware"]["ranks"] == ranks
    where = "import sancus, sancus.staleness as s; print(sancus.__file__); print(s.POLICIES['always'])"
    told = subprocess.run(
        [sys.executable, "-c", where], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    place, target = told.stdout.split()
    assert installed[way] in Path(place).parents and target == "sancus.staleness.always:Always"
