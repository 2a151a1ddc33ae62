"""Which settings go together with mini-batches; what does nothing there is refused, not ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sancus.errors import UserError
from sancus.models import MODELS
from sancus.sampling import OF_SUBGRAPHS
from sancus.sampling.settings import ALL, SamplingSettings
from sancus.store import NO_CACHE

FULL, MINIBATCH = "full", "minibatch"  # schedules
ONLY_FULL_GRAPH: dict[str, Any] = {  # settings, and the value that leaves mini-batches alone
    "staleness": "always",
    "backward": "always",
    "codec": "fp32",
    "backward_codec": None,
    "error_feedback": False,
    "clip": None,
    "label_rate": 0.0,
}
ONLY_BATCHES: dict[str, Any] = {
    "fanout": SamplingSettings.fanout,
    "sampler": SamplingSettings.sampler,
    "topology": "mapped",
    "prefetch": SamplingSettings.prefetch,
    "feature_cache": NO_CACHE,
    "feature_codec": "fp32",
}  # what leaves the full graph alone


def schedule_of(schedule: str, sampling: SamplingSettings) -> str:
    """The spec of the schedule that runs: a batch size chooses mini-batches."""
    return MINIBATCH if sampling.batch_size and schedule == FULL else schedule


def takes_subgraphs(sampling: SamplingSettings) -> bool:
    """Whether the sampler draws nodes, and takes all neighbours among them."""
    return bool(sampling.batch_size) and sampling.sampler.partition(":")[0] in OF_SUBGRAPHS


def _check_subgraphs(sampling: SamplingSettings) -> None:
    """Refuse a number of neighbours where a sampler takes all of those that it has."""
    if takes_subgraphs(sampling) and set(sampling.fanouts(1)) != {ALL}:
        name = sampling.sampler.partition(":")[0]
        raise UserError(
            f"--fanout {sampling.fanout}: --sampler {name} takes all neighbours inside a batch; "
            "add --fanout all"
        )


def check_batches(sampling: SamplingSettings, settings: Mapping[str, Any]) -> None:
    """Refuse a fan-out that does not match the layers, and what only a full graph's traffic has.

    `settings` are all settings of the run, by the names of their flags.
    """
    named = settings["schedule"]
    if not sampling.batch_size:
        for name, neutral in ONLY_BATCHES.items():
            if settings[name] != neutral:
                flag = f"--{name.replace('_', '-')} {settings[name]}"
                raise UserError(f"{flag} is for mini-batches; add --batch-size, or leave it out")
        if named == MINIBATCH:
            raise UserError("--schedule minibatch needs --batch-size: how many training nodes a step has")
        return
    if schedule_of(named, sampling) != MINIBATCH:
        raise UserError(f"--schedule {named} has no batches; leave it out, or --batch-size")
    for name, neutral in ONLY_FULL_GRAPH.items():
        if settings[name] != neutral:
            raise UserError(
                f"--{name.replace('_', '-')} {settings[name]} is for training on the full graph; leave it "
                "out, or --batch-size (--preset exact sets nothing of the kind)"
            )
    _check_subgraphs(sampling)
    fanouts, layers = sampling.fanouts(settings["layers"]), settings["layers"]
    if settings["model"] in MODELS and len(fanouts) != layers:
        raise UserError(
            f"--fanout {sampling.fanout} is for {len(fanouts)} layers, and --layers is {layers}; "
            "give one a layer, or a single one for all"
        )
