"""Presets: a paper in one line of settings. Flags override what a preset sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sancus.errors import UserError
from sancus.plugins import choices

Settings = Mapping[str, str | bool | float]
DEFAULT = "lean"  # of the command line


@dataclass(frozen=True)
class Preset:
    """Named settings; one with levels is written `name` (its default level) or `name:level`."""

    summary: str
    settings: Settings
    level: Callable[[int], Settings] | None = None  # what a level adds
    default: int = 1
    largest: int | None = None  # level; None: any whole number from 1 on


_EXACT: Settings = {"plan": "auto", "reuse_input": True, "order": "auto", "skip_input_gradient": True}
_HALO = {**_EXACT, "plan": "halo"}
_CAGNET: Settings = {
    "plan": "block",
    "reuse_input": False,
    "order": "aggregate-first",
    "skip_input_gradient": False,
}

PRESETS: dict[str, Preset] = {
    "exact": Preset("the least rows with all exact savings: the same numbers for less traffic", _EXACT),
    "cagnet": Preset("CAGNET 1D: whole blocks, no savings; SANCUS Algorithm 3, every flag ACTIVE", _CAGNET),
    "sancus-e": Preset(
        "SANCUS SCS-E1 to E3: all blocks every 2, 3 or 4 epochs (Definition 1)",
        _CAGNET,
        lambda bound: {"staleness": f"epoch-fixed:bound={bound}"},
        largest=3,
    ),
    "sancus-a": Preset(
        "SANCUS SCS-A1 to A3: owners take turns, no block older than 1, 2 or 3 epochs (Definition 2)",
        _CAGNET,
        lambda bound: {"staleness": f"epoch-adaptive:bound={bound}"},
        largest=3,
    ),
    "sancus-h": Preset(
        "SANCUS SCS-H1 to H3: a block when it drifted by more than 0.01, 0.02 or 0.03 (Definition 3)",
        _CAGNET,
        lambda gap: {"staleness": f"variation-gap:gap=0.0{gap}"},
        largest=3,
    ),
    "skipg": Preset(
        "SANCUS's comparison: fresh embeddings, gradients every 2, 3 or 4 epochs",
        _CAGNET,
        lambda bound: {"backward": f"epoch-fixed:bound={bound}"},
        largest=3,
    ),
    "pipegcn": Preset(
        "PipeGCN: halo rows of the last epoch, forward and backward, while this epoch's travel",
        {**_HALO, "staleness": "pipelined", "backward": "pipelined"},
    ),
    "sylvie-s": Preset("Sylvie-S: halo rows in one bit a value, both directions", {**_HALO, "codec": "int1"}),
    "sylvie-a": Preset(
        "Sylvie-A: one bit, pipelined, with one synchronous epoch in S (sylvie-a:S)",
        {**_HALO, "codec": "int1"},
        lambda every: dict.fromkeys(("staleness", "backward"), f"pipelined:sync_every={every}"),
        default=5,
    ),
    "supergcn": Preset(
        "SuperGCN: least rows in two bits a value, half of the training labels as input",
        {**_EXACT, "codec": "int2", "label_rate": 0.5},
    ),
    "digest": Preset(
        "DIGEST: halo rows pushed every N epochs (digest:N), no gradients, ranks average their weights",
        {**_HALO, "backward": "drop", "parameters": "average"},
        lambda period: {"staleness": f"periodic:period={period}"},
        default=10,
    ),
    "lean": Preset(
        "our best: the least rows, embeddings in four bits and gradients in two, with all exact savings",
        {**_EXACT, "codec": "int4:tail=short", "backward_codec": "int2:tail=short"},
    ),
    "partition-only": Preset(
        "nothing crosses but parameters: the honest baseline",
        {**_HALO, "staleness": "drop", "backward": "drop"},
    ),
}


def preset_settings(spec: str) -> dict[str, str | bool | float]:
    """The settings of a preset, `name` or `name:level`; an unknown one lists the others."""
    name, colon, level = spec.partition(":")
    if name not in PRESETS:
        raise UserError(f"preset {name!r} does not exist; choose from {choices(PRESETS, name)}")
    preset = PRESETS[name]
    if preset.level is None:
        if colon:
            raise UserError(f"preset {spec!r} does not exist; {name} has {name} alone")
        return dict(preset.settings)
    number = int(level) if level.isdecimal() else 0 if colon else preset.default
    if number < 1 or number > (preset.largest or number):
        until = f"to {name}:{preset.largest}" if preset.largest else "on, any whole number"
        raise UserError(f"preset {spec!r} does not exist; {name} has {name}:1 {until}")
    return dict(preset.settings) | dict(preset.level(number))
