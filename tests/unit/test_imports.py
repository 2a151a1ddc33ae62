"""The import rules of `docs/design.md`, read from the source with `ast`; nothing is imported here.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING. Only the rule that
some modules load before torch looks at what runs on import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sancus", "staleness", "partitioners")  # the last two are imported as parts of the first

# The rooms from the bottom up, and whom each of them imports: only rooms above it in this table, all of which
# it really uses. A room is a package of `sancus`, or a module that is in none.
BELOW = {
    "errors": "",
    "plugins": "errors",
    "kernels": "errors",
    "metrics": "",
    "report": "",
    "staleness": "",
    "partitioners": "",
    "console": "report",
    "comm": "errors",
    "codecs": "kernels",
    "graphs": "errors plugins partitioners",
    "plans": "errors kernels graphs",
    "datasets": "errors plugins partitioners graphs",
    "parameters": "comm codecs",
    "exchange": "errors kernels staleness comm codecs plans",
    "store": "errors kernels comm codecs",
    "sampling": "errors plugins kernels partitioners comm graphs exchange",
    "models": "errors plugins kernels",
    "training": (
        "errors plugins kernels metrics comm codecs graphs plans parameters exchange store sampling models"
    ),
    "trackers": "errors plugins metrics",
    "watch": "comm",
    "config": (
        "errors plugins kernels staleness partitioners comm codecs parameters plans datasets store sampling "
        "models training "
        "trackers"
    ),
    "launch": "errors watch",
    "jobs": "errors",
    "shards": "errors plugins partitioners console comm graphs datasets models watch config",
    "runs": (
        "errors plugins kernels metrics report staleness console comm codecs graphs plans datasets "
        "exchange models training trackers watch config launch shards"
    ),
    "advise": (
        "errors plugins kernels report staleness partitioners console comm codecs parameters graphs plans "
        "datasets exchange store sampling models training config launch shards runs"
    ),
    "cli": (
        "errors plugins report partitioners console comm datasets watch config launch jobs shards runs advise"
    ),
    "programs": (
        "errors plugins console comm graphs datasets models training watch config launch jobs shards runs "
        "advise cli"
    ),
    "api": "comm graphs datasets exchange training watch config launch shards runs programs",
    "__init__": "errors graphs training config programs api",
    "__main__": "cli",
}


def _full(room: str) -> str:
    return "sancus" if room == "__init__" else f"sancus.{room}"


ROOMS = {_full(room): {_full(other) for other in others.split()} for room, others in BELOW.items()}
LOOSE = {"__init__", "__main__", "api", "errors", "plugins"}  # modules that are no package's
VERSION = "sancus.__version__"  # a constant that the package has before anything else: no dependency

# Rooms that may use only these of the outside world; the standard library is open to all.
OUTSIDE: dict[str, set[str]] = {
    "sancus.report": {"numpy", "plotly"},
    "sancus.kernels": {"torch", "numpy", "scipy", "torch_sparse", "torch_scatter", "triton"},
    "sancus.models": {"torch"},
    "sancus.staleness": {"numpy", "scipy", "torch"},
    "sancus.partitioners": {"numpy", "scipy", "torch", "pymetis"},
}

# Loaded before torch, so that `sancus --help` is quick; a folder stands for all its modules.
BEFORE_TORCH = (
    "sancus/__main__.py",
    "sancus/cli",
    "sancus/advise/doctor.py",
    "sancus/config",
    "sancus/datasets",
    "sancus/errors.py",
    "sancus/graphs/graph.py",
    "sancus/launch",
    "sancus/runs/logs.py",
    "sancus/shards/free_memory.py",
    "sancus/console",
    "sancus/trackers",
    "sancus/plugins.py",
    "sancus/shards/cache.py",
    "sancus/watch/deaths.py",
    "sancus/runs/check.py",
    "sancus/runs/compare.py",
    "sancus/runs/pages.py",
    "sancus/runs/question.py",
    "sancus/runs/directory.py",
    "sancus/runs/layout.py",
    "sancus/training/full.py",
    "sancus/training/asynchronous.py",
    "sancus/training/pipeline.py",
    "sancus/training/schedule.py",
    "sancus/comm/layout.py",
)


@dataclass(frozen=True)
class Import:
    """One imported name: `from a import b` is `a.b`, as nothing tells a module from a name."""

    name: str
    line: int
    on_load: bool  # runs when the module is imported


def imports(source: str, module: str, is_package: bool = False) -> list[Import]:
    """Every import of a module, and every `torch.distributed` that is reached without importing it."""
    return list(_walk(ast.parse(source), module if is_package else module.rpartition(".")[0], on_load=True))


def _walk(node: ast.AST, package: str, on_load: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, on_load)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, on_load)
    elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.distributed":
        yield Import("torch.distributed", node.lineno, on_load=False)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        on_load = False
    elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.body:
            yield from _walk(child, package, on_load=False)
        for child in node.orelse:
            yield from _walk(child, package, on_load)
        return
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, on_load)


def room_of(name: str) -> str:
    """`sancus.plans.halo` belongs to `sancus.plans`, a public name of `sancus` to `sancus`."""
    longest = ".".join(name.split(".")[:2])
    return longest if longest in ROOMS else "sancus"


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module imports against the rules, one line each."""
    room = room_of(module)
    lines = []
    for item in imports(source, module, is_package):
        top = item.name.split(".")[0]
        if top in PACKAGES:
            bad = item.name != VERSION and room_of(item.name) not in ROOMS[room] | {room}
        else:
            bad = top not in sys.stdlib_module_names and room in OUTSIDE and top not in OUTSIDE[room]
            group = top == "mpi4py" or f"{item.name}.".startswith("torch.distributed.")
            bad = bad or (group and room != "sancus.comm")
        if bad:
            lines.append(f"{module}:{item.line} imports {item.name}, which {room} may not")
    return lines


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "sancus" else ("sancus", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


def module_of(name: str) -> str | None:
    """The module that an imported name is, or is in; None where it is not ours."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or None


def uses(module: str) -> set[str]:
    """The modules of ours that a module imports, wherever it does."""
    path = FILES[module]
    items = imports(path.read_text(), module, path.name == "__init__.py")
    targets = {module_of(item.name) for item in items if item.name != VERSION}
    return {target for target in targets if target is not None} - {module}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """What is left when nodes that depend on none are taken away again and again: the cycles."""
    left = dict(graph)
    while free := [node for node, targets in left.items() if not targets & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


def loads_torch(module: str, seen: set[str]) -> str | None:
    """The chain of modules by which importing `module` imports torch, or None."""
    parts = module.split(".")
    for name in (".".join(parts[:end]) for end in range(1, len(parts) + 1)):  # its packages load first
        if name in seen or name not in FILES:
            continue
        seen.add(name)
        for item in imports(FILES[name].read_text(), name, FILES[name].name == "__init__.py"):
            if not item.on_load:
                continue
            chain = "torch" if item.name.split(".")[0] == "torch" else loads_torch(item.name, seen)
            if chain:
                return f"{name}:{item.line} -> {chain}"
    return None


@pytest.mark.parametrize("module", FILES)
def test_imports_follow_the_rules(module: str) -> None:
    path = FILES[module]
    room = ".".join(module.split(".")[:2])
    assert room in ROOMS, f"{room} has no line in BELOW: say what it may import"
    assert not violations(path.read_text(), module, path.name == "__init__.py")


def test_modules_are_in_rooms() -> None:
    assert {path.stem for path in (ROOT / "sancus").glob("*.py")} == LOOSE
    for room in ROOMS:
        assert any(room_of(module) == room for module in FILES), f"{room} does not exist"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    below = list(ROOMS)[: list(ROOMS).index(room)]
    assert ROOMS[room] <= set(below), f"{room} points up"


@pytest.mark.parametrize("room", ROOMS)
def test_every_permission_is_used(room: str) -> None:
    used = {room_of(target) for module in FILES if room_of(module) == room for target in uses(module)}
    assert ROOMS[room] - used == set(), f"{room} imports none of these: take them out of its row"


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle({module: uses(module) for module in FILES}) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@pytest.mark.parametrize("entry", BEFORE_TORCH)
def test_loads_before_torch(entry: str) -> None:
    modules = [name for name, path in FILES.items() if (ROOT / entry) in (path, *path.parents)]
    chains = [loads_torch(name, set()) for name in modules]
    assert not [chain for chain in chains if chain]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sancus.plans.halo", "import sancus.exchange"),
        ("sancus.plans.halo", "from sancus import comm"),
        ("sancus.plans.halo", "from ..comm import gloo"),
        ("sancus.plans.halo", "def f():\n    from sancus.models.gcn import GCN"),
        ("sancus.plans.halo", "if TYPE_CHECKING:\n    from sancus.training import Trainer"),
        ("sancus.comm.gloo", "from sancus.plugins import build"),
        ("sancus.models.gcn", "if TYPE_CHECKING:\n    from sancus.exchange.full_graph import FullGraph"),
        ("sancus.runs.compare", "def f():\n    from sancus.cli.app import main"),
        ("sancus.runs.build", "from sancus import train"),
        ("sancus.exchange.history", "import torch.distributed as dist"),
        ("sancus.exchange.history", "from torch import distributed"),
        ("sancus.exchange.history", "import torch\n\ndef f():\n    torch.distributed.barrier()"),
        ("sancus.runs.build", "from mpi4py import MPI"),
        ("sancus.metrics.names", "from sancus.errors import UserError"),
        ("sancus.report.page", "import scipy"),
        ("sancus.report.page", "from sancus.errors import UserError"),
        ("sancus.kernels.spmm", "from sancus.graphs import Graph"),
        ("sancus.staleness.fixed", "import sancus"),
        ("sancus.staleness.fixed", "from sancus.errors import UserError"),
        ("sancus.staleness.fixed", "import sancus.partitioners"),
        ("sancus.partitioners.metis", "from ..staleness import POLICIES"),
    ],
)
def test_a_violation_is_caught(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("sancus.comm.gloo", "import torch.distributed as dist\nfrom sancus.errors import UserError"),
        ("sancus.comm.mpi", "from mpi4py import MPI\nfrom . import gloo"),
        ("sancus.models.gcn", "from sancus.kernels.matrix import SparseMatrix"),
        ("sancus.plans.halo", "from sancus import __version__\nfrom sancus.errors import UserError"),
        ("sancus.report.page", "import json\nfrom sancus.report.tables import table"),
        ("sancus.runs.build", "import sancus.training.trainer, sancus.staleness, torch"),
    ],
)
def test_what_the_rules_allow_passes(module: str, source: str) -> None:
    assert not violations(source, module)


def test_only_what_runs_on_import_counts_as_loading() -> None:
    source = (
        "from __future__ import annotations\n"
        "if TYPE_CHECKING:\n    import torch\nelse:\n    import a\n"
        "def f():\n    import torch\n"
        "try:\n    import b\nexcept ImportError:\n    pass\n"
        "class C:\n    import c\n"
    )
    loaded = {item.name for item in imports(source, "sancus.config") if item.on_load}
    assert loaded == {"__future__.annotations", "a", "b", "c"}
