"""What can be refused before anything is loaded or started. Imports no torch where it can be helped."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sancus.comm.secret import read_secret
from sancus.config.kinds import has_methods, try_spec
from sancus.config.presets import PRESETS
from sancus.config.settings import Config, FactorSettings
from sancus.datasets.open import check_source
from sancus.errors import UserError
from sancus.launch.space import check_temporary_space
from sancus.plans import PLANS, changes
from sancus.plugins import build, load, parse
from sancus.runs.directory import check_directory
from sancus.shards.cache import is_shards
from sancus.staleness import POLICIES
from sancus.staleness.base import RowPolicy
from sancus.trackers.base import check_tracker

# Specs of presets, which are right: to look at their classes would take the time to import torch.
KNOWN = frozenset(value for preset in PRESETS.values() for value in preset.settings.values())


def check(data: str, config: Config, *, launched: bool) -> None:
    """Refuse what can be refused before anything is loaded or started.

    `launched` says that a launcher started this process: another rank may be writing to `--out` by now, so
    rank 0 checks it later, when it opens it.
    """
    if not is_shards(data):
        check_source(data)
    check_settings(config, launched=launched)


def check_settings(config: Config, *, launched: bool) -> None:
    """Refuse what can be refused whatever the data is."""
    check_plugins(config)
    check_policies(config.factors)
    check_temporary_space()
    read_secret(os.environ)
    if config.factors.plan not in KNOWN:
        plan = parse("plan", PLANS, config.factors.plan)
        check_memory_of_draws(config.factors, load("plan", plan))
    check_tracker(config.output.track)
    if not launched:
        check_directory(config.output)
    if config.launch.device == "cuda":
        check_cuda(1 if launched else config.launch.ranks or 1)


def check_plugins(config: Config) -> None:
    """Refuse a plug-in that cannot take its settings or lacks a method."""
    for kind, spec in config.specs():
        if spec not in KNOWN:
            try_spec(kind, spec)


def check_model(model: object) -> None:
    """Refuse the model that a program gave, a spec, a class or a module, where it has no `forward`."""
    if isinstance(model, str):
        try_spec("model", model)
    elif isinstance(model, type) or callable(getattr(model, "parameters", None)):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        has_methods("model", name, model)
    elif not callable(model):
        raise UserError(
            f"model is a {type(model).__name__}; give a name, file.py:Net, a class, or a module "
            "(settings go in config= or by name)"
        )


def check_policies(factors: FactorSettings) -> None:
    """Refuse what goes by whole payloads where a policy picks rows of them."""
    for flag, spec in (("staleness", factors.staleness), ("backward", factors.backward)):
        if spec in KNOWN or not isinstance(build("policy", POLICIES, spec), RowPolicy):
            continue
        if factors.agree == "epoch":
            raise UserError(
                f"--agree epoch: --{flag} {spec} picks rows when they cross; choose --agree layer"
            )
        if factors.error_feedback:
            raise UserError(
                f"--error-feedback: --{flag} {spec} sends other rows in every epoch, so what a code left out "
                "of one cannot be added to the next; leave it out"
            )


def check_memory_of_draws(factors: FactorSettings, plan: object) -> None:
    """Refuse to remember rows under a plan that draws others in every epoch; `plan` may be its class."""
    if not changes(plan):
        return
    other = f"--plan {factors.plan} sends other rows in every epoch, so those of an earlier one cannot serve"
    for flag, spec in (("staleness", factors.staleness), ("backward", factors.backward)):
        if build("policy", POLICIES, spec).max_age:
            raise UserError(f"--{flag} {spec}: {other}; choose always or drop, or --plan halo")
    if factors.error_feedback:
        raise UserError(f"--error-feedback: {other}; leave it out, or choose --plan halo")


def check_cuda(ranks: int = 1) -> None:
    """Refuse `--device cuda` on a machine without a GPU that torch can use for each of so many ranks."""
    import torch

    if not torch.cuda.is_available():
        raise UserError("--device cuda, but torch finds no GPU here; use --device cpu")
    count = torch.cuda.device_count()
    if ranks > count:
        raise UserError(
            f"--device cuda: {ranks} ranks of this host, but {count} GPUs, one for each; use fewer ranks, or "
            "--device cpu"
        )
    built = torch.cuda.get_arch_list()
    for index in range(ranks):
        major, minor = torch.cuda.get_device_capability(index)
        if not _runs(major, minor, built):
            name = torch.cuda.get_device_name(index)
            raise UserError(
                f"--device cuda: GPU {index} ({name}, sm_{major}{minor}) cannot run this torch, which is "
                f"for {', '.join(built)}; install another torch, or use --device cpu"
            )


def _runs(major: int, minor: int, built: Sequence[str]) -> bool:
    """Whether a GPU runs code for one of these architectures: its generation's, or older PTX."""
    for one in built:
        form, _, digits = one.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdigit():  # of another maker: torch itself knows
            return True
        other = divmod(int(digits), 10)
        if other <= (major, minor) and (form == "compute" or other[0] == major):
            return True
    return not built
