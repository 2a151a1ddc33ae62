"""Plug-in tables: a name, or `package.module:Class`, becomes a configured object.

Every kind (partitioner, plan, policy, codec, kernel, model, backend, schedule …) is a plain table
`{"name": "module:Class"}`. A *spec* is what a user types: `name`, `name:key=value,key=value`,
`my_pkg.mod:Mine`, `my_file.py:Mine` or `my_pkg.mod:Mine:key=value`. Settings are converted by the type hints
of the class's constructor, so a plug-in declares its settings once.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import types
import typing
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sancus.errors import UserError

Table = Mapping[str, str]
OLD_NAMES = {"staleness": "sancus.staleness", "partitioners": "sancus.partitioners"}


@dataclass(frozen=True)
class Spec:
    """A parsed spec: which class, and the settings to build it with, still as text."""

    name: str
    target: str
    settings: Mapping[str, str]


def choices(names: typing.Iterable[str], wrong: str) -> str:
    """`a, b, c (did you mean b?)`: what is allowed, and the nearest to what was typed."""
    ordered = sorted(names)
    near = difflib.get_close_matches(wrong, ordered, n=2, cutoff=0.5)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return ", ".join(ordered) + hint


def parse(kind: str, table: Table, text: str) -> Spec:
    """Read a spec without importing anything; an unknown name lists the known ones."""
    name, _, rest = text.partition(":")
    if name in table:
        return Spec(name, table[name], _settings(kind, text, rest))
    if "." in name and rest:
        attribute, _, settings = rest.partition(":")
        return Spec(text, f"{name}:{attribute}", _settings(kind, text, settings))
    raise UserError(
        f"{kind} {name!r} does not exist; choose from {choices(table, name)}, "
        "or give package.module:Class or file.py:Class"
    )


def load(kind: str, spec: Spec) -> type[Any]:
    """Import the class of a spec. The working directory is searched, as `python -m` would."""
    module_name, _, attribute = spec.target.partition(":")
    sys.path[:] = import_path()
    try:
        is_file = module_name.endswith(".py")
        with _old_names():
            module = _import_file(Path(module_name)) if is_file else importlib.import_module(module_name)
    except Exception as error:
        reason = f"{error}" if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{kind} {spec.name!r}: cannot import {module_name!r}: {reason}") from error
    target = getattr(module, attribute, None)
    if not callable(target):
        raise UserError(f"{kind} {spec.name!r}: {module_name!r} has no class {attribute!r}")
    return typing.cast("type[Any]", target)


def import_path() -> list[str]:
    """Where modules of plug-ins are looked for."""
    here = str(Path.cwd())
    return list(sys.path) if here in sys.path else [*sys.path, here]


class _OldNames(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds our packages under the top-level names that they had, as the same modules: one SEND, not two.

    A module of the user's own that has such a name stays what it is.
    """

    def find_spec(
        self, name: str, path: object = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top not in OLD_NAMES:
            return None
        parent = sys.modules.get(top)
        ours = self._is_free(top) if parent is None else parent.__name__ == OLD_NAMES[top]
        return importlib.machinery.ModuleSpec(name, self) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        top, dot, rest = spec.name.partition(".")
        module = importlib.import_module(f"{OLD_NAMES[top]}{dot}{rest}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """The module was executed under its own name, whose spec it gets back."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def _is_free(self, top: str) -> bool:
        """Whether a name belongs to nobody, or to our own folder in a checkout."""
        real = importlib.machinery.PathFinder.find_spec(top)
        if real is None or real.origin is None:  # a folder without __init__.py is no package of that name
            return True
        package = importlib.util.find_spec(OLD_NAMES[top])
        assert package is not None and package.origin is not None
        return Path(real.origin).resolve() == Path(package.origin).resolve()


@contextlib.contextmanager
def _old_names() -> Iterator[None]:
    """While a plug-in is imported: one that was written for the version before finds what it names."""
    finder = _OldNames()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Loads a file from its text, never from a `.pyc`, which may be that of the text before."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path) -> types.ModuleType:
    """The module of a `.py` file, under a name of its own; imported once, and again after it was edited."""
    place = path.expanduser().resolve()
    if not place.is_file():
        raise ImportError(f"there is no file {path}")
    content = place.read_bytes()
    name = f"sancus_file_{place.stem}_{zlib.crc32(content, zlib.crc32(str(place).encode())):08x}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _FreshLoader(name, str(place))
    spec = importlib.util.spec_from_file_location(name, place, loader=loader)
    assert spec is not None, "there is a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def settings_of(kind: str, spec: Spec, internal: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Convert the settings of a spec by the constructor's type hints; arguments in `internal` are ours."""
    target = load(kind, spec)
    hints = typing.get_type_hints(target.__init__)
    parameters = inspect.signature(target).parameters
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    allowed = [name for name, p in parameters.items() if name not in internal and p.kind not in anything]
    values = {}
    for key, text in spec.settings.items():
        if key not in allowed:
            settings = choices(allowed, key) if allowed else "none"
            raise UserError(f"{kind} {spec.name!r} has no setting {key!r}; its settings: {settings}")
        values[key] = _convert(kind, spec.name, key, text, hints.get(key, str))
    missing = [
        name for name in allowed if parameters[name].default is inspect.Parameter.empty and name not in values
    ]
    if missing:
        raise UserError(f"{kind} {spec.name!r} needs {', '.join(missing)}: {spec.name}:{missing[0]}=…")
    return values


def build(kind: str, table: Table, text: str, **internal: Any) -> Any:
    """Spec in, object out. `internal` are constructor arguments that do not come from the user."""
    spec = parse(kind, table, text)
    values = settings_of(kind, spec, frozenset(internal))
    try:
        return load(kind, spec)(**internal, **values)
    except ValueError as error:
        raise UserError(f"{kind} {text!r}: {error}") from error
    except Exception as error:
        if spec.name in table:
            raise
        raise UserError(f"{kind} {text!r}: {type(error).__name__}: {error}") from error


def missing_method(subject: Any, methods: typing.Iterable[str]) -> str | None:
    """The first of the methods that an object, or a class, does not have.

    A `torch.nn.Module` without a `forward` of its own has one that always fails.
    """
    for name in methods:
        method = getattr(subject, name, None)
        if not callable(method) or getattr(method, "__name__", "") == "_forward_unimplemented":
            return name
    return None


def wrong_call(subject: Any, method: str, arguments: str) -> str | None:
    """Why `method` of an object, or of a class, cannot be called with these arguments; None where it can."""
    call = getattr(subject, method)
    names = arguments.split(", ") if arguments else []
    unbound = isinstance(subject, type) and inspect.isfunction(inspect.getattr_static(subject, method, None))
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # of a compiled function
        return None
    try:
        signature.bind(*([None] * (len(names) + unbound)))
    except TypeError:
        taken = [str(one) for name, one in signature.parameters.items() if not (unbound and name == "self")]
        return f"{method}({', '.join(taken)}) must be {method}({arguments})"
    return None


def summary(target: str) -> str:
    """First line of a plug-in's docstring, for `sancus list`; read without importing it."""
    import ast

    module_name, _, attribute = target.partition(":")
    spec = importlib.util.find_spec(module_name)
    assert spec is not None and spec.origin is not None, module_name
    tree = ast.parse(Path(spec.origin).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").split("\n")[0]
    return ""


def _settings(kind: str, text: str, rest: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{kind} {text!r}: {item!r} is not key=value; write name:key=value,key=value")
        values[key.strip()] = value.strip()
    return values


def _convert(kind: str, name: str, key: str, text: str, hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        allowed = [str(value) for value in typing.get_args(hint)]
        if text not in allowed:
            raise UserError(f"{kind} {name!r}: {key}={text!r} is not one of {choices(allowed, text)}")
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{kind} {name!r}: {key}={text!r} must be true or false")
        return text.lower() == "true"
    for kind_of in (int, float):
        if hint is kind_of:
            try:
                return kind_of(text)
            except ValueError:
                word = "a whole number" if kind_of is int else "a number"
                raise UserError(f"{kind} {name!r}: {key}={text!r} is not {word}") from None
    return text
