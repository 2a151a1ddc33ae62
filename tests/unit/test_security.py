"""No pickle is loaded, written or sent: read from the source, so that nobody adds one by accident."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path for package in ("sancus", "partitioners", "staleness") for path in (ROOT / package).rglob("*.py")
]
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle", "yaml"}
# The one reader of a published format that is a pickle: it makes nothing but plain arrays.
RESTRICTED = "sancus/datasets/restricted.py"
# A model of a notebook goes from a program to processes of its own, in a folder that nobody else may write.
OWN_CHILDREN = "sancus/programs/errand.py"
HARMLESS = {"pickle.UnpicklingError"}  # what torch.load(weights_only=True) raises
CALLS = {  # call: the argument that makes it safe
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "numpy.load": ("allow_pickle", False),
    "np.save": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
}
NEVER = {"eval", "exec", "compile", "os.system", "torch.save", "torch.distributed.send_object_list"}
OBJECTS = ("_object_list", "all_gather_object", "broadcast_object", "gather_object", "scatter_object")


def dangers(source: str, name: str) -> list[str]:
    """What a module does that could run what a file or a peer says, one line each."""
    found = []
    for node in ast.walk(ast.parse(source)):
        line = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            names = [f"{start}{alias.name}" for alias in node.names if f"{start}{alias.name}" not in HARMLESS]
            if name not in (RESTRICTED, OWN_CHILDREN) and {item.split(".")[0] for item in names} & FORBIDDEN:
                found += [f"{line} imports {names[0]}"]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if called in NEVER or any(part in called for part in OBJECTS):
                found += [f"{line} calls {called}"]
            if called in CALLS and given.get(CALLS[called][0]) != str(CALLS[called][1]):
                found += [f"{line} calls {called} without {CALLS[called][0]}={CALLS[called][1]}"]
            if any(keyword == "shell" and value != "False" for keyword, value in given.items()):
                found += [f"{line} starts a shell"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_no_eval(path: Path) -> None:
    assert not dangers(path.read_text(), str(path.relative_to(ROOT)))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "dist.all_gather_object(a, b)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_a_danger_is_seen(source: str) -> None:
    assert len(dangers(source, "sancus/other.py")) == 1


def test_what_is_safe_passes() -> None:
    source = "torch.load(p, weights_only=True)\nnp.load(p, allow_pickle=False)\nmodel.eval()\nre.compile('a')"
    assert not dangers(source, "sancus/other.py")
