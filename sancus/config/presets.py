"""Presets: a paper in one line of settings. Flags override what a preset sets.

A preset is written `name`, `name:level` or either with `:paper` behind it. As `name` it has our exact savings
too: they leave the result of a full precision, fresh run alone, and send less. As `name:paper` it does
what the paper's equations say, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sancus.errors import UserError
from sancus.plugins import choices

Settings = Mapping[str, str | bool | float]
DEFAULT = "lean"  # where a user names none, on the command line or in Python
PAPER = "paper"  # the last word of a spec: as the paper did it


@dataclass(frozen=True)
class Level:
    """The number behind a preset's name: `sancus-e:2`, `bns:0.1`."""

    settings: Callable[[str], Settings]  # what a level adds; the number is checked, and written one way
    default: str | None = "1"  # None: without a number, the preset's own settings are all
    largest: int | None = None  # None: any whole number from 1 on
    share: bool = False  # a number above 0 and at most 1, in place of a whole one

    def read(self, text: str) -> str | None:
        """The number as settings write it; None where it is no level."""
        if self.share:
            try:
                number = float(text)
            except ValueError:
                return None
            return repr(number).removesuffix(".0") if math.isfinite(number) and 0 < number <= 1 else None
        whole = int(text) if text.isdecimal() else 0
        return str(whole) if 1 <= whole <= (self.largest or whole) else None

    def allowed(self, name: str) -> str:
        """In the words of a message, what may be typed."""
        if self.share:
            return f"{name}:p, p above 0 and at most 1, as in {name}:{self.default}"
        until = f"to {name}:{self.largest}" if self.largest else "on, any whole number"
        alone = f"{name}, and " if self.default is None else ""
        return f"{alone}{name}:1 {until}"


@dataclass(frozen=True)
class Preset:
    """Named settings, with or without levels."""

    summary: str
    settings: Settings
    level: Level | None = None
    paper: Settings | None = None  # what `:paper` sets instead; None where a preset is nobody's but ours


_EXACT: Settings = {"plan": "auto", "reuse_input": True, "order": "auto", "skip_input_gradient": True}
_HALO = {**_EXACT, "plan": "halo"}
_CAGNET: Settings = {
    "plan": "block",
    "reuse_input": False,
    "order": "aggregate-first",
    "skip_input_gradient": False,
}
# Every layer sends rows of its input, `dW = (Â H)ᵀ δ`, and the gradients of received rows travel back, of all
# layers but the first: Sylvie's Algorithms 1 and 2, and how PipeGCN, BNS-GCN, SuperGCN and DIGEST train.
_PUBLISHED: Settings = {"reuse_input": False, "order": "aggregate-kept"}
_AS_IT_IS: Settings = {}  # no saving of ours is on

# A thousand seeds, ten neighbours a layer: the mean of DistDGL's 15, 10 and 5, for any number of layers.
_BATCHES: Settings = {**_EXACT, "batch_size": 1000, "fanout": "10"}

PRESETS: dict[str, Preset] = {
    "exact": Preset("the least rows with all exact savings: the same numbers for less traffic", _EXACT),
    "cagnet": Preset(
        "CAGNET 1D: whole blocks, no savings; SANCUS Algorithm 3, every flag ACTIVE", _CAGNET, paper=_AS_IT_IS
    ),
    "sancus-e": Preset(
        "SANCUS SCS-E1 to E3: all blocks every 2, 3 or 4 epochs (Definition 1)",
        _CAGNET,
        Level(lambda bound: {"staleness": f"epoch-fixed:bound={bound}"}, largest=3),
        paper=_AS_IT_IS,
    ),
    "sancus-a": Preset(
        "SANCUS SCS-A1 to A3: owners take turns, no block older than 1, 2 or 3 epochs (Definition 2)",
        _CAGNET,
        Level(lambda bound: {"staleness": f"epoch-adaptive:bound={bound}"}, largest=3),
        paper=_AS_IT_IS,
    ),
    "sancus-h": Preset(
        "SANCUS SCS-H1 to H3: a block when it drifted by more than 0.01, 0.02 or 0.03 (Definition 3)",
        _CAGNET,
        Level(lambda gap: {"staleness": f"variation-gap:gap=0.0{gap}"}, largest=3),
        paper=_AS_IT_IS,
    ),
    "skipg": Preset(
        "SANCUS's comparison, as we read it: embeddings always, their gradients every 2, 3 or 4 epochs",
        _CAGNET,
        Level(lambda bound: {"backward": f"epoch-fixed:bound={bound}"}, largest=3),
        paper=_AS_IT_IS,
    ),
    "pipegcn": Preset(
        "PipeGCN: halo rows of the last epoch, forward and backward, while this epoch's travel",
        {**_HALO, "staleness": "pipelined", "backward": "pipelined"},
        paper=_PUBLISHED,
    ),
    "bns": Preset(
        "BNS-GCN: a share p of the halo rows, drawn anew every epoch and scaled by 1/p (bns:p)",
        _HALO,
        Level(lambda rate: {"plan": f"drawn:rate={rate}"}, default="0.1", share=True),
        paper=_PUBLISHED,
    ),
    "sylvie-s": Preset(
        "Sylvie-S: halo rows in one bit a value, both directions",
        {**_HALO, "codec": "int1:tail=short"},
        paper=_PUBLISHED,
    ),
    "sylvie-a": Preset(
        "Sylvie-A: one bit, pipelined; sylvie-a:S with one synchronous epoch in S, the adaptor",
        {**_HALO, "codec": "int1:tail=short", "staleness": "pipelined", "backward": "pipelined"},
        Level(
            lambda every: dict.fromkeys(("staleness", "backward"), f"pipelined:sync_every={every}"),
            default=None,
        ),
        paper=_PUBLISHED,
    ),
    "supergcn": Preset(
        "SuperGCN: least rows in two bits a value, half of the training labels as input",
        {**_EXACT, "codec": "int2:tail=short", "label_rate": 0.5, "label_draw": "once"},
        paper=_PUBLISHED,
    ),
    "digest": Preset(
        "DIGEST: halo rows pushed every N epochs (digest:N), no gradients, ranks average their weights",
        {**_HALO, "backward": "drop", "parameters": "average"},
        Level(lambda period: {"staleness": f"periodic:period={period}"}, default="10"),
        paper=_PUBLISHED,
    ),
    "digest-a": Preset(
        "DIGEST-A: digest:N (digest-a:N) without a barrier; steps are merged as they come",
        {**_HALO, "backward": "drop", "parameters": "average", "schedule": "async"},
        Level(lambda period: {"staleness": f"periodic:period={period}"}, default="10"),
        paper=_PUBLISHED,
    ),
    "gnnpipe": Preset(
        "GNNPipe: layers over S stages (gnnpipe:S; alone: one a rank), chunks of rows through them",
        {**_EXACT, "schedule": "pipeline"},
        Level(lambda stages: {"stages": int(stages)}, default=None),
        paper=_PUBLISHED,
    ),
    "distdgl": Preset(
        "DistDGL: batches of drawn neighbours, METIS parts with as many training, validation and test nodes",
        {**_BATCHES, "partitioner": "metis:balance=rows+train+val+test"},
        paper=_PUBLISHED,
    ),
    "salient++": Preset(
        "SALIENT++: batches of drawn neighbours, the likeliest rows of other ranks in a cache",
        {**_BATCHES, "feature_cache": "vip:share=0.3"},
        paper=_PUBLISHED,
    ),
    "clustergcn": Preset(
        "Cluster-GCN: batches of whole clusters, and all edges inside a batch",
        {**_BATCHES, "sampler": "cluster", "fanout": "all"},
        paper=_PUBLISHED,
    ),
    "graphsaint": Preset(
        "GraphSAINT: subgraphs of random walks, entries and losses scaled so that sums are right on average",
        {**_BATCHES, "batch_size": 2000, "sampler": "saint", "fanout": "all"},
        paper=_PUBLISHED,
    ),
    "lean-batch": Preset(
        "our best in batches: shared draws, the likeliest rows in a cache, pulled features in eight bits",
        {
            **_BATCHES,
            "sampler": "labor",
            "feature_cache": "vip:share=0.3",
            "feature_codec": "int8:tail=short",
        },
    ),
    "lean": Preset(
        "our best: the least rows, embeddings in four bits and gradients in two, with all exact savings",
        {**_EXACT, "codec": "int4:tail=short", "backward_codec": "int2:tail=short"},
    ),
    "partition-only": Preset(
        "nothing crosses but parameters: the honest baseline",
        {**_HALO, "staleness": "drop", "backward": "drop"},
        paper=_PUBLISHED,
    ),
}


def preset_settings(spec: str) -> dict[str, str | bool | float]:
    """The settings of a preset, `name[:level][:paper]`; what does not exist is told what does."""
    name, *words = spec.split(":")
    if name not in PRESETS:
        raise UserError(f"preset {name!r} does not exist; choose from {choices(PRESETS, name)}")
    preset = PRESETS[name]
    settings = dict(preset.settings)
    as_published = words[-1:] == [PAPER]
    settings |= _level_settings(spec, preset.level, words[:-1] if as_published else words)
    if as_published:
        if preset.paper is None:
            raise UserError(f"preset {spec!r} does not exist; {name} is no paper's, but ours: {name} alone")
        settings |= preset.paper
    return settings


def _level_settings(spec: str, level: Level | None, words: list[str]) -> Settings:
    """What the words between name and `paper` add; no word is the default level, if there is one."""
    name = spec.partition(":")[0]
    if level is None:
        if words:
            raise UserError(f"preset {spec!r} does not exist; {name} has {_forms(name)}")
        return {}
    if not words:
        return {} if level.default is None else level.settings(level.default)
    number = level.read(words[0])
    if number is None or len(words) > 1:
        raise UserError(f"preset {spec!r} does not exist; {name} has {_forms(name)}")
    return level.settings(number)


def _forms(name: str) -> str:
    """All that a preset may be written as, in the words of a message."""
    preset = PRESETS[name]
    forms = f"{name} alone" if preset.level is None else preset.level.allowed(name)
    return forms if preset.paper is None else f"{forms}; :{PAPER} behind it is as the paper did it"
