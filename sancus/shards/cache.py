"""From what the user typed to shards on disk: check, load, partition, cut; cached by content.

Every process of a host may call `prepare`: a lock lets the first one build while the others wait, and
they then find the result. A graph that cannot be used is refused here, before any group starts.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from sancus.config.presets import PRESETS
from sancus.config.settings import Config
from sancus.console.speaker import SILENT, Speaker
from sancus.datasets.home import home
from sancus.datasets.open import check_source, fingerprint, open_graph
from sancus.errors import UserError
from sancus.graphs import shards
from sancus.graphs.order import RowOrder
from sancus.models import MODELS
from sancus.models.contract import given_names
from sancus.partitioners import PARTITIONERS
from sancus.partitioners.base import Partitioner
from sancus.plugins import build, load, parse, settings_of
from sancus.runs import directory as runfiles
from sancus.shards.partition import build_shards
from sancus.trackers.base import check_tracker

# Constructor arguments that a plug-in gets from us, not from the user's spec.
OURS = {"plan": frozenset({"operator", "bench"})}
# Plug-ins that need nothing to be made, and no torch: their settings are checked by making one.
PURE = ("partitioner", "policy")
# Specs of presets, which are right: to look at their classes would take the time to import torch.
KNOWN = frozenset(value for preset in PRESETS.values() for value in preset.settings.values())


def check(data: str, config: Config, *, launched: bool) -> None:
    """Refuse what can be refused before anything is loaded or started.

    `launched` says that a launcher started this process: another rank may be writing to `--out` by now, so
    rank 0 checks it later, when it opens it.
    """
    if not is_shards(data):
        check_source(data)
    for kind, table, spec in [*config.factors.specs(), ("model", MODELS, config.model)]:
        parsed = parse(kind, table, spec)
        if kind in PURE:
            build(kind, table, spec)
        elif spec not in KNOWN and (parsed.settings or parsed.name not in table):
            ours = given_names(load(kind, parsed)) if kind == "model" else OURS.get(kind, frozenset())
            settings_of(kind, parsed, ours)
    check_tracker(config.output.track)
    if not launched:
        runfiles.check_directory(config.output)
    if config.launch.device == "cuda":
        _check_cuda()


def prepare(
    data: str,
    partitioner: str,
    parts: int,
    say: Speaker = SILENT,
    row_order: RowOrder = "auto",
) -> Path:
    """The shard directory of `data` in `parts` parts; built if it is not in the cache.

    Where `data` is a shard directory already, it is that.
    """
    if is_shards(data):
        return _use_shards(Path(data), parts)
    chosen: Partitioner = build("partitioner", PARTITIONERS, partitioner)
    how = [partitioner, _source_of(chosen), parts, row_order]
    identity = json.dumps([shards.FORMAT, fingerprint(data), *how])
    target = home() / "shards" / xxhash.xxh3_128_hexdigest(identity.encode())
    with locked(target):
        if not (target / "manifest.json").exists():
            for leftover in (target, *target.parent.glob(f".{target.name}-*")):  # of a killed process
                shutil.rmtree(leftover, ignore_errors=True)
            say.step(f"loading {data}")
            graph = open_graph(data)
            build_shards(graph, chosen, partitioner, parts, target, say, row_order=row_order)
    return target


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """One process of a host at a time; the others wait, and then find what it built."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to {home()}: {error.strerror}; set SANCUS_HOME to a directory you can write"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_shards(data: str) -> bool:
    """Whether what the user typed is a directory that `sancus partition` wrote."""
    return bool(data) and (Path(data).expanduser() / shards.MANIFEST).is_file()


def parts_of(data: str) -> int | None:
    """How many parts a shard directory has; None where `data` is none."""
    if not is_shards(data):
        return None
    return len(shards.read_manifest(Path(data).expanduser())["offsets"]) - 1


def _use_shards(directory: Path, parts: int) -> Path:
    directory = directory.expanduser()
    found = len(shards.read_manifest(directory)["offsets"]) - 1
    if found != parts:
        raise UserError(
            f"{directory} holds {found} parts for {parts} ranks; use --ranks {found}, or partition it again"
        )
    return directory


def _source_of(partitioner: Partitioner) -> str:
    """What a partitioner of the user's own does: its module's text, which may change between runs."""
    module = sys.modules[type(partitioner).__module__]
    ours = module.__name__.startswith("sancus.partitioners.")
    return "" if ours else inspect.getsource(module)


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no GPU here; use --device cpu")
