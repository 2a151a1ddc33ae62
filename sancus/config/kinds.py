"""Every kind of plug-in, in one table: where its names are, which flags take them, what a run fills in.

Settings are validated, runs checked and `sancus list` written from here, so that a new kind is one line, and
a new plug-in of a kind is one line in that kind's own table. Imports no torch: tables name modules as text.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sancus.codecs import CODECS
from sancus.comm import BACKENDS
from sancus.datasets import READERS
from sancus.errors import UserError
from sancus.kernels import KERNELS
from sancus.models import MODELS
from sancus.models.contract import filled_arguments, is_pyg_model
from sancus.parameters import PARAMETER_CODECS
from sancus.partitioners import PARTITIONERS
from sancus.plans import AUTO, PLANS
from sancus.plugins import (
    Table,
    build,
    choices,
    load,
    missing_method,
    parse,
    settings_of,
    wrong_call,
)
from sancus.sampling import SAMPLERS
from sancus.staleness import POLICIES
from sancus.store import CACHES, NO_CACHE
from sancus.trackers import TRACKERS
from sancus.training import SCHEDULES, SECTIONS

Fills = Callable[[Callable[..., Any]], frozenset[str]]  # of a class: its arguments that a run fills in


def _fills(*names: str) -> Fills:
    """The same constructor arguments of every class of a kind."""
    return lambda _: frozenset(names)


def sections_wanted(schedule: Callable[..., Any]) -> frozenset[str]:
    """The sections of the settings that a schedule's constructor asks for by name."""
    return frozenset(SECTIONS) & frozenset(inspect.signature(schedule).parameters)


NOTHING = _fills()


@dataclass(frozen=True)
class Kind:
    """A kind of plug-in."""

    table: Table
    flags: tuple[str, ...] = ()  # settings whose value is a spec of this kind
    fills: Fills = NOTHING
    words: tuple[str, ...] = ()  # what a flag may say instead of a spec
    own: bool = True  # whether a user may bring a class: package.module:Class or file.py:Class
    tried: Literal["made", "settings", "no"] = "settings"
    """How a spec is tried before a run: an object is made, its settings are read, or it may fail later."""
    methods: Mapping[str, str] = field(default_factory=dict)  # of a user's class, and what they are given
    says: tuple[str, ...] = ()  # attributes that a user's class must have


# kind, as users call it in messages and `sancus list` -> all that there is to know of it
KINDS: dict[str, Kind] = {
    "partitioner": Kind(PARTITIONERS, ("partitioner",), tried="made", methods={"assign": "adjacency, parts"}),
    "plan": Kind(PLANS, ("plan",), _fills("operator", "bench"), words=(AUTO,)),
    "policy": Kind(POLICIES, ("staleness", "backward"), tried="made", methods={"decide": "view"}),
    "codec": Kind(
        CODECS,
        ("codec", "backward_codec", "boundary_codec", "feature_codec"),
        methods={
            "wire": "rows, columns, dtype, device, stage",
            "encode": "payload, moment, weight",
            "decode": "wire, rows, columns, dtype, stage",
        },
        says=("lossless",),
    ),
    "parameter-codec": Kind(
        PARAMETER_CODECS,
        ("parameter_codec",),
        methods={
            "sum": "tensors, group, seed",
            "wire_bytes": "shapes, ranks, itemsize",
            "collectives": "shapes",
            "state": "",
            "restore": "state, device",
        },
    ),
    "backend": Kind(BACKENDS, ("backend",), words=("auto",), own=False),
    "kernel": Kind(
        KERNELS,
        ("kernel",),
        methods={"prepare": "matrix", "multiply": "prepared, dense", "accumulate": "prepared, dense, out"},
    ),
    "schedule": Kind(
        SCHEDULES,
        ("schedule",),
        sections_wanted,
        methods={"layout": "ranks", "prepare": "work", "train_epoch": "epoch, work"},
    ),
    "sampler": Kind(SAMPLERS, ("sampler",), methods={"sample": "hops, seeds, fanouts, keys"}),
    "cache": Kind(
        CACHES, ("feature_cache",), words=(NO_CACHE,), methods={"scores": "reads"}, says=("share",)
    ),
    "model": Kind(MODELS, ("model",), filled_arguments, methods={"forward": "x, exchange"}),
    "data": Kind(READERS),
    "tracker": Kind(TRACKERS, ("track",), _fills("directory", "config"), tried="no"),
}


def specs_of(settings: object) -> Iterator[tuple[str, str]]:
    """Every plug-in that an object's own settings name: (kind, spec)."""
    for name, kind in KINDS.items():
        for flag in kind.flags:
            spec = getattr(settings, flag, None)
            if spec is not None and spec not in kind.words:
                yield name, spec


def check_specs(settings: object) -> None:
    """Refuse a plug-in that does not exist; imports nothing."""
    for name, spec in specs_of(settings):
        kind = KINDS[name]
        if kind.own:
            parse(name, kind.table, spec)
        elif spec not in kind.table:
            allowed = choices([*kind.words, *kind.table], spec)
            raise UserError(f"{name} {spec!r} does not exist; choose from {allowed}")


def try_spec(name: str, spec: str) -> None:
    """Refuse a plug-in that cannot take its settings or lacks a method, before a run starts.

    Of a user's own an object is made, where no run is needed for it; else its class is looked at.
    """
    kind = KINDS[name]
    parsed = parse(name, kind.table, spec)
    own = parsed.name not in kind.table
    if kind.tried == "made":
        has_methods(name, spec, build(name, kind.table, spec))
    elif kind.tried == "settings" and (parsed.settings or own):
        target = load(name, parsed)
        settings = settings_of(name, parsed, kind.fills(target))
        _check(f"{name} {spec!r}", target, settings)
        if own and kind.fills is NOTHING:
            has_methods(name, spec, build(name, kind.table, spec))
        elif own and isinstance(target, type):
            has_methods(name, spec, target)


def has_methods(name: str, spec: str, subject: object) -> None:
    """Refuse an object, or a class, of a kind that lacks a method of it."""
    if name == "model" and is_pyg_model(subject):
        return
    methods = KINDS[name].methods
    missing = missing_method(subject, methods)
    if missing is not None:
        raise UserError(f"{name} {spec!r} has no method {missing}; a {name} must have {', '.join(methods)}")
    silent = next((one for one in KINDS[name].says if not hasattr(subject, one)), None)
    if silent is not None:
        raise UserError(f"{name} {spec!r} does not say {silent}; set {silent} = True or False in the class")
    for method, arguments in methods.items():
        given = f"{arguments}, splits" if getattr(subject, "knows_splits", False) else arguments
        wrong = wrong_call(subject, method, given)
        if wrong is not None:
            raise UserError(f"{name} {spec!r}: {wrong}{_advice(name, wrong)}")


def _advice(name: str, wrong: str) -> str:
    """What else helps where a model is one of PyG's."""
    pyg = name == "model" and "edge_index" in wrong
    return "; put each of PyG's layers in a PyGLayer (sancus.models.pyg)" if pyg else ""


def _check(what: str, target: type[Any], settings: Mapping[str, Any]) -> None:
    """Ask a class that only a run can make about its settings, by its static `check_settings`, if any."""
    try:
        getattr(target, "check_settings", dict)(**settings)
    except ValueError as error:
        raise UserError(f"{what}: {error}") from error
