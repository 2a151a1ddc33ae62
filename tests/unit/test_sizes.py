"""Modules, functions, classes and constructors are small enough to be read at once; what is not, and why."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path for room in ("sancus", "staleness", "partitioners") for path in sorted((ROOT / room).rglob("*.py"))
]
MODULE_LINES = 350
FUNCTION_LINES = 80
METHODS = 15
PARAMETERS = 8

# Records with more fields than a constructor may have parameters. Nobody calls them with a row of values.
SETTINGS = "a field a flag: made from flags by name, and read by name"
FIGURES = "one figure a field, made in one place by name"
RECORDS = {
    "Config": "a section of the settings a field: made and read by name",
    "FactorSettings": SETTINGS,
    "TrainingSettings": SETTINGS,
    "ModelSettings": SETTINGS,
    "PipelineSettings": SETTINGS,
    "Synthetic": "a plug-in: each field is a setting that a user may type",
    "View": "what a policy may know, so that a policy is a function of one argument",
    "Status": FIGURES,
    "Figures": FIGURES,
    "Graph": "what a file of a graph holds, a field each",
    "Result": FIGURES,
    "Quality": FIGURES,
    "Estimate": FIGURES,
    "Expected": FIGURES,
    "Chart": "one property of a chart a field, most of them left out where a chart is made",
}


def too_large(source: str) -> Iterator[str]:
    """What is larger than it may be, a line each."""
    if len(source.splitlines()) > MODULE_LINES:
        yield f"module: {len(source.splitlines())} lines, at most {MODULE_LINES}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{node.name}: {lines} lines, at most {FUNCTION_LINES}"
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > METHODS:
                yield f"{node.name}: {len(methods)} methods, at most {METHODS}"
            if parameters(node, methods) > PARAMETERS and node.name not in RECORDS:
                yield f"{node.name}: {parameters(node, methods)} constructor parameters, at most {PARAMETERS}"


def parameters(node: ast.ClassDef, methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> int:
    """Of the constructor, without `self`; of a dataclass, its fields."""
    for method in methods:
        if method.name == "__init__":
            taken = method.args
            return len([*taken.posonlyargs, *taken.args, *taken.kwonlyargs]) - 1
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return sum(isinstance(item, ast.AnnAssign) for item in node.body)
    return 0


def test_everything_is_small() -> None:
    assert FILES
    assert [
        f"{path.relative_to(ROOT)}: {line}" for path in FILES for line in too_large(path.read_text())
    ] == []


def test_every_large_record_exists() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert [name for name in RECORDS if f"class {name}" not in text] == []


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("x = 1\n" * 351, "module: 351 lines"),
        ("def f():\n" + "    x = 1\n" * 80, "f: 81 lines"),
        ("class A:\n" + "".join(f"    def m{n}(self): ...\n" for n in range(16)), "A: 16 methods"),
        ("class A:\n    def __init__(self, a, b, c, d, e, f, g, *, h, i): ...\n", "A: 9 constructor"),
        (
            "@dataclass(frozen=True)\nclass A:\n" + "".join(f"    x{n}: int\n" for n in range(9)),
            "A: 9 constructor",
        ),
    ],
)
def test_what_is_too_large_is_found(source: str, what: str) -> None:
    (line,) = too_large(source)
    assert line.startswith(what)
