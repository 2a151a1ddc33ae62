"""What can be refused before anything is loaded or started. Imports no torch where it can be helped."""

from __future__ import annotations

from sancus.config.presets import PRESETS
from sancus.config.settings import Config
from sancus.datasets.open import check_source
from sancus.errors import UserError
from sancus.models import MODELS
from sancus.models.contract import given_names
from sancus.plugins import build, load, parse, settings_of
from sancus.runs.directory import check_directory
from sancus.shards.cache import is_shards
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
        check_directory(config.output)
    if config.launch.device == "cuda":
        _check_cuda()


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no GPU here; use --device cpu")
