"""The configuration of a run: frozen dataclasses, validated when made, one field doc each.

A field's metadata say what a setting means to ranks and to later runs; where they say nothing, all ranks must
agree on it, and it may not change when a run is resumed:

- `may_change`: a resumed run may set it anew without touching what its histories mean;
- `agree`: `False` where ranks may differ, `"presence"` where only its being set must be the same;
- `repeat`: `False` for what belongs to one start of a run, and is not taken over with its other settings.

Imports no torch, so that `--help` and every mistake on the command line are answered at once.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import xxhash
from cyclopts import Group, Parameter

from sancus.config.batches import check_batches, schedule_of, takes_subgraphs
from sancus.config.kinds import check_specs, specs_of
from sancus.config.presets import DEFAULT, preset_settings
from sancus.errors import UserError
from sancus.models.settings import ModelSettings
from sancus.plans import AUTO
from sancus.sampling.settings import SamplingSettings
from sancus.training.async_settings import AsyncSettings
from sancus.training.link_settings import LinkSettings, check_links
from sancus.training.own_settings import refuse_elsewhere
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.settings import TrainingSettings

FREE = {"may_change": True}
OWN = {"may_change": True, "agree": False}  # of one rank, or of the machine that it runs on
ONCE = {"may_change": True, "agree": False, "repeat": False}
LONGEST_TIMEOUT = 1e6  # seconds; transports count milliseconds in machine words


@dataclass(frozen=True)
class FactorSettings:
    """The factors of the traffic, and the exact savings.

    Those are exact where rows are fresh and in full precision; elsewhere see `docs/composition.md`.
    """

    partitioner: str = "metis"
    """Who owns which rows: a partitioner, e.g. metis:seed=1."""
    row_order: Literal["auto", "given", "rcm", "metis"] = "auto"
    """Rows inside a block: as given, or reordered for the cache; auto: by metis where the hit rate rises."""
    plan: str = AUTO
    """Rows that cross a cut: block, halo, prepost, drawn:rate=0.1; auto: prepost for models that only sum."""
    staleness: str = "always"
    """Policy for embeddings: must they cross now?"""
    backward: str = "always"
    """Policy for the gradients of embeddings."""
    codec: str = "fp32"
    """Bits on the wire: fp32, fp16, bf16, int8, int4, int2, int1 or auto:budget=2.5."""
    backward_codec: str | None = None
    """Bits on the wire for the gradients; default: those of --codec."""
    error_feedback: bool = False
    """Owners add to each send what the codec left out of the send before."""
    backend: str = field(default="auto", metadata=FREE)
    """Transport: auto, gloo, mpi or nccl."""
    agree: Literal["layer", "epoch"] = "layer"
    """When owners that measure drift tell the others: at every layer, or once an epoch for the next."""
    broadcast: Literal["auto", "ring", "library"] = field(default="auto", metadata=FREE)
    """How a block reaches all: pipelined around the ring, by the library, or what a probe finds faster."""
    clip: float | None = None
    """Clip a rank's gradient rows to an L2 norm of √p·this before they cross (SANCUS's; it derives 1/√p)."""
    reuse_input: bool = True
    """Exact saving: features cross once. Dropout of dense ones then falls on ÂX, not on X."""
    order: Literal["auto", "aggregate-first", "aggregate-kept", "transform-first"] = "auto"
    """Send H or HW; auto: the narrower, exact for fresh rows in full precision; with --backward drop: H."""
    skip_input_gradient: bool = True
    """Exact saving: no gradient of the features, so no backward traffic for the first layer."""
    kernel: str = field(default="auto", metadata=FREE)
    """Sparse product: auto (native where its library loads, else torch), native, torch or torch-sparse."""

    def __post_init__(self) -> None:
        check_specs(self)
        if self.clip is not None and not (math.isfinite(self.clip) and self.clip > 0):
            raise UserError(f"--clip {self.clip}: must be a positive number")


@dataclass(frozen=True)
class LaunchSettings:
    """Ranks and the machine."""

    ranks: int | None = field(default=None, metadata=OWN)
    """Number of ranks, 1 if not given; under torchrun or mpiexec it may only repeat the launcher's."""
    threads: int | None = field(default=None, metadata=OWN)
    """Threads a rank; default: cores divided by the ranks of this host."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where tensors live; cuda: one GPU a rank (has never run: docs/gpu.md)."""
    timeout: float = field(default=120.0, metadata=OWN)
    """Seconds after which a collective that does not end, or a builder of shards that rests, is an error."""
    restarts: int = field(default=0, metadata=ONCE)
    """How often local ranks are started again after a failure; they go on from the last checkpoint."""

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise UserError(f"--restarts {self.restarts}: must not be negative")
        for name in ("ranks", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: must be at least 1")
        if not 0 < self.timeout <= LONGEST_TIMEOUT:
            raise UserError(
                f"--timeout {self.timeout:g}: must be above 0 and at most {LONGEST_TIMEOUT:g} seconds"
            )


@dataclass(frozen=True)
class OutputSettings:
    """What a run leaves behind."""

    out: Path | None = field(default=None, metadata=ONCE)
    """Directory for the run's files; default: a new one under runs/."""
    overwrite: bool = field(default=False, metadata=ONCE)
    """Replace the run that --out holds already."""
    checkpoint_every: int = field(default=0, metadata=FREE)
    """Write a checkpoint every so many epochs; one is always written at the end and on SIGTERM or SIGINT."""
    keep: int = field(default=2, metadata=OWN)
    """How many checkpoints to keep; the newest ones."""
    resume: Path | None = field(default=None, metadata=ONCE | {"agree": "presence"})
    """Directory of an earlier run: go on from its newest checkpoint; auto: from that in --out, if any."""
    verbose: bool = field(default=False, metadata=OWN)
    """Print every epoch, and at the end the bill of every layer, direction and owner."""
    quiet: bool = field(default=False, metadata=ONCE)
    """Print nothing but errors."""
    track: str | None = field(default=None, metadata=OWN)
    """Also send every epoch's figures to a tracker: tensorboard, mlflow or wandb (extras)."""

    def __post_init__(self) -> None:
        if self.overwrite and self.out is None:
            raise UserError("--overwrite needs --out: the directory of the run to replace")
        if self.overwrite and self.resume is not None and (self.automatic or self.out == self.resume):
            raise UserError("--overwrite would delete the run that --resume goes on with; leave it out")
        if self.automatic and self.out is None:
            raise UserError("--resume auto needs --out: the directory to go on in")
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose contradict each other; give one of them")
        if self.keep < 1:
            raise UserError(f"--keep {self.keep}: must be at least 1")
        check_specs(self)
        if self.checkpoint_every < 0:
            raise UserError(f"--checkpoint-every {self.checkpoint_every}: must not be negative")
        if self.resume is not None and not self.automatic and not (self.resume / "checkpoint").is_dir():
            raise UserError(f"--resume {self.resume}: no checkpoint there; give the --out directory of a run")

    @property
    def automatic(self) -> bool:
        """Whether `--out` says what is resumed; a directory of that name is `./auto`."""
        return self.resume == Path("auto")


def _usual_preset(_: str) -> str:
    """The preset of `sancus train` and of `sancus.train` where none is named; in batches it is `exact`."""
    return DEFAULT


def _flags(title: str, order: int) -> Parameter:
    """The fields of a section become plain flags, under a heading of their own in `--help`."""
    return Parameter(name="*", group=Group(title, sort_key=order))


@dataclass(frozen=True)
class Config:
    """A complete run."""

    preset: Annotated[str, Parameter(show_default=_usual_preset)] = field(default="exact", metadata=FREE)
    """Named settings: see `sancus list`. Flags override what a preset sets."""
    factors: Annotated[FactorSettings, _flags("Factors of the traffic", 1)] = field(
        default_factory=FactorSettings
    )
    model: str = "gcn"
    """Model: gcn, sage, gin, gat, gatv2, gcnii, resgcn+, or your own: my_file.py:Net."""
    shape: Annotated[ModelSettings, _flags("Model", 2)] = field(default_factory=ModelSettings)
    training: Annotated[TrainingSettings, _flags("Training", 3)] = field(default_factory=TrainingSettings)
    sampling: Annotated[SamplingSettings, _flags("Mini-batches", 4)] = field(default_factory=SamplingSettings)
    link: Annotated[LinkSettings, _flags("Links", 5)] = field(default_factory=LinkSettings)
    pipeline: Annotated[PipelineSettings, _flags("Pipeline", 6)] = field(default_factory=PipelineSettings)
    asynchronous: Annotated[AsyncSettings, _flags("Asynchronous", 7)] = field(default_factory=AsyncSettings)
    launch: Annotated[LaunchSettings, _flags("Ranks", 8)] = field(default_factory=LaunchSettings)
    output: Annotated[OutputSettings, _flags("Output", 9)] = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        preset_settings(self.preset)
        sections = (self, self.shape, self.training, self.sampling, self.pipeline)
        for section in sections:  # the others have checked themselves
            check_specs(section)
        check_batches(self.sampling, self.flat())
        refuse_elsewhere(self.asynchronous, self.schedule.partition(":")[0], "async", "digest-a")
        refuse_elsewhere(self.pipeline, self.schedule.partition(":")[0], "pipeline", "gnnpipe")
        check_links(self.flat(), self.schedule, takes_subgraphs(self.sampling))
        if self.launch.restarts and self.output.out is None and self.output.resume is None:
            raise UserError("--restarts needs --out: the directory that a new attempt goes on in")
        if self.factors.backend == "nccl" and self.launch.device != "cuda":
            raise UserError("--backend nccl moves CUDA tensors; add --device cuda, or choose gloo or mpi")

    @property
    def schedule(self) -> str:
        """The spec of the schedule: a batch size chooses mini-batches."""
        return schedule_of(self.training.schedule, self.sampling)

    def output_width(self, classes: int) -> int:
        """Columns of what the model returns: logits of classes, or, of links, an embedding."""
        return self.shape.hidden if self.training.task == "link" else classes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, complete: `sancus train --config` repeats the run."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return plain

    def specs(self) -> list[tuple[str, str]]:
        """Every plug-in that the run uses: (kind, spec)."""
        sections = (
            self.factors,
            self,
            self.shape,
            self.training,
            self.sampling,
            self.pipeline,
            self.output,
        )
        return [pair for section in sections for pair in specs_of(section)]

    def flat(self) -> dict[str, Any]:
        """Every setting by the name of its flag."""
        return {name: value for name, _, value in _settings_in(self)}

    def digest(self) -> bytes:
        """16 bytes that differ when any setting that must agree between ranks differs."""
        agreed = {}
        for name, item, value in _settings_in(self):
            rule = item.metadata.get("agree", True)
            if rule:
                agreed[name] = value is not None if rule == "presence" else value
        return xxhash.xxh3_128_digest(json.dumps(agreed, sort_keys=True).encode())


def fields_by_flag() -> dict[str, dataclasses.Field[Any]]:
    """The field of every setting, by the name of its flag."""
    return {name: item for name, item, _ in _settings_in(Config())}


def _settings_in(section: Any) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Name, field and value of every setting, those of the sections inside included."""
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            yield from _settings_in(value)
        else:
            yield item.name, item, value


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """`Config.to_dict()` as flag names and values, without those that were left unset."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flatten(value) if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in flat.items() if value is not None}
