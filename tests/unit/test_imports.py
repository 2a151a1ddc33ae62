"""The import rules of the design (DESIGN §3), read from the source with `ast`; nothing is imported here.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING. Only the rule that
some modules load before torch looks at what runs on import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sancus", "staleness", "partitioners")  # the last two are imported as parts of the first

# Who may import whom. A layer is a top-level package, or one module or package of `sancus`; its own
# modules and the HELPERS are always allowed unless it is CLOSED.
EVERYTHING = None
LAYERS: dict[str, set[str] | None] = {
    "sancus": EVERYTHING,  # public names, imported when they are asked for
    "sancus.api": EVERYTHING,  # the same pieces, for programs
    "sancus.__main__": {"sancus.cli"},
    "sancus.cli": EVERYTHING,
    "sancus.advise": EVERYTHING,
    "sancus.runs": EVERYTHING,
    "sancus.launch": EVERYTHING,
    "sancus.shards": EVERYTHING,
    "sancus.config": EVERYTHING,
    "sancus.trackers": set(),
    "sancus.watch": {"sancus.comm"},  # reads and tells, touches nothing
    "sancus.training": {"sancus.comm", "sancus.models", "sancus.exchange", "sancus.metrics", "sancus.graphs"},
    "sancus.models": {"sancus.kernels"},  # for the types of rows; all else is its Neighbourhood protocol
    "sancus.exchange": {
        "sancus.plans",
        "sancus.codecs",
        "sancus.comm",
        "sancus.kernels",
        "sancus.staleness",
        "sancus.metrics",
    },
    "sancus.datasets": {"sancus.partitioners", "sancus.graphs"},
    "sancus.graphs": {"sancus.partitioners", "sancus.kernels"},
    "sancus.plans": {"sancus.graphs", "sancus.kernels"},
    "sancus.codecs": {"sancus.kernels"},
    "sancus.comm": {"sancus.errors", "sancus.metrics"},
    "sancus.kernels": set(),
    "sancus.metrics": set(),
    "sancus.report": set(),
    "sancus.errors": set(),
    "sancus.plugins": {"sancus.errors"},
    "sancus.console": {"sancus.report"},
    "sancus.staleness": set(),
    "sancus.partitioners": set(),
}
HELPERS = {"sancus", "sancus.errors", "sancus.plugins", "sancus.console"}
CLOSED = {
    "sancus.comm",
    "sancus.errors",
    "sancus.metrics",
    "sancus.plugins",
    "sancus.report",
    "sancus.staleness",
    "sancus.partitioners",
}

# Layers that may use only these of the outside world; the standard library is open to all.
OUTSIDE: dict[str, set[str]] = {
    "sancus.report": {"numpy", "plotly"},
    "sancus.kernels": {"torch", "numpy", "scipy", "torch_sparse", "torch_scatter"},
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
    "sancus/shards/memory.py",
    "sancus/console",
    "sancus/trackers",
    "sancus/plugins.py",
    "sancus/shards/cache.py",
    "sancus/watch/deaths.py",
    "sancus/runs/compare.py",
    "sancus/runs/directory.py",
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


def layer_of(name: str) -> str:
    """`sancus.plans.halo` belongs to `sancus.plans`, `sancus.__version__` to `sancus`."""
    parts = name.split(".")
    longest = ".".join(parts[:2])
    return longest if longest in LAYERS else parts[0]


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What a module imports against the rules, one line each."""
    layer = layer_of(module)
    allowed = LAYERS[layer]
    found = []
    for item in imports(source, module, is_package):
        target, top = layer_of(item.name), item.name.split(".")[0]
        if top in PACKAGES:
            free = target == layer or (
                target in HELPERS and top == layer.split(".")[0] and layer not in CLOSED
            )
            bad = not free and allowed is not EVERYTHING and target not in allowed
        else:
            known = top in sys.stdlib_module_names
            bad = not known and layer in OUTSIDE and top not in OUTSIDE[layer]
            group = top == "mpi4py" or f"{item.name}.".startswith("torch.distributed.")
            bad = bad or (group and layer != "sancus.comm")
        if bad:
            found.append(f"{module}:{item.line} imports {item.name}, which {layer} may not")
    return found


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "sancus" else ("sancus", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}


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
def test_imports_follow_the_design(module: str) -> None:
    path = FILES[module]
    where = ".".join(module.split(".")[:2]) if module.startswith("sancus.") else module.split(".")[0]
    assert where in LAYERS, f"{where} has no line in LAYERS: say what it may import"
    assert not violations(path.read_text(), module, path.name == "__init__.py")


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
        ("sancus.plans.halo", "from sancus import __version__\nfrom sancus.plugins import build"),
        ("sancus.report.page", "import json\nfrom sancus.report.tables import table"),
        ("sancus.runs.build", "import sancus.training.trainer, sancus.staleness, torch"),
    ],
)
def test_what_the_design_allows_passes(module: str, source: str) -> None:
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
