"""What is explored: a sample in `make test`, all of it in `make protocol`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sancus.config.settings import FactorSettings
from sancus.sampling.settings import SamplingSettings
from sancus.training.pipeline_settings import PipelineSettings
from tests.protocol.explorer import Count, explore
from tests.protocol.play import Play, Program
from tests.protocol.programs import ExchangeProgram, Ground, Setting, TrainingProgram
from tests.protocol.properties import Judge

GAP = "variation-gap:gap=1.5"  # with which owners decide differently
EARLY = (True,)  # of three ranks: they drift further apart, and late waits are seen with two
FIXED = "epoch-fixed:bound=1"
LATER = "pipelined"
STAGES = PipelineSettings(chunks=2, stale_gradients=True)  # as many stages as ranks
BATCHES = SamplingSettings(batch_size=2, fanout="2")
TURNS = "epoch-adaptive:bound=1"


def _factors(staleness: str, plan: str = "block", **more: object) -> FactorSettings:
    given = {"plan": plan, "staleness": staleness, "broadcast": "library"} | more
    return FactorSettings(**given)  # type: ignore[arg-type]


EXCHANGES = [
    Setting("every payload, a broadcast each", 2, 2, _factors("always")),
    Setting("every payload, around the ring", 2, 1, _factors("always", broadcast="ring")),
    Setting("every payload, all to all", 3, 1, _factors("always", "halo"), waits=EARLY),
    Setting("skipped broadcasts, by the epoch", 2, 3, _factors(FIXED, backward=FIXED)),
    Setting("skipped broadcasts, owners in turn", 2, 4, _factors(TURNS)),
    Setting("skipped broadcasts, by drift", 2, 4, _factors(GAP)),
    Setting("skipped broadcasts, by drift, agreed once an epoch", 2, 4, _factors(GAP, agree="epoch")),
    Setting("skipped payloads, by drift", 3, 2, _factors(GAP, "halo"), waits=EARLY),
    Setting("in the background, all to all", 2, 2, _factors(LATER, "halo")),
    Setting("in the background, both directions", 2, 2, _factors(LATER, "halo", backward=LATER)),
    Setting("in the background, a broadcast each", 2, 2, _factors(LATER)),
    Setting("in the background, all to all", 3, 2, _factors(LATER, "halo"), waits=EARLY),
]
TRAININGS = [
    Setting("training", 2, 2, _factors("always", "halo"), 2, signals=True),
    Setting("training, skipped broadcasts", 2, 2, _factors(FIXED), 2, signals=True, eval_every=2),
    Setting("training, in the background", 2, 2, _factors(LATER, "halo"), 2, signals=True, eval_every=2),
    Setting("training, weights averaged", 2, 1, _factors("always"), 2, signals=True, parameters="average"),
    Setting("training, a pipeline", 2, 2, _factors("always"), 2, eval_every=2, pipeline=STAGES),
    Setting("training, a pipeline, and a signal", 2, 1, _factors("always"), 2, signals=True, pipeline=STAGES),
    Setting("training, a pipeline", 3, 1, _factors("always"), 3, pipeline=STAGES, waits=EARLY),
    Setting("training, mini-batches", 2, 2, _factors("always"), 1, eval_every=2, sampling=BATCHES),
    Setting("training, mini-batches", 3, 1, _factors("always"), 1, sampling=BATCHES, waits=EARLY),
    Setting("training, a policy fails on one rank", 2, 2, _factors(FIXED, "halo"), 2, fails="policy"),
    Setting("training, a number of one rank is not finite", 2, 2, _factors("always"), 2, fails="number"),
]
SAMPLE: list[tuple[Callable[..., Program], Setting, dict[str, bool]]] = [
    (
        ExchangeProgram,
        Setting("skipped broadcasts, by drift", 2, 3, _factors(GAP)),
        {"eager": True, "crashes": False},
    ),
    (
        ExchangeProgram,
        Setting("in the background, all to all", 2, 2, _factors(LATER, "halo")),
        {"eager": False, "crashes": True},
    ),
    (
        TrainingProgram,
        Setting("training", 2, 2, _factors(FIXED), 2, signals=True, eval_every=2),
        {"eager": True, "crashes": False},
    ),
]


@dataclass(frozen=True)
class Explored:
    """One setting, and what came of it."""

    setting: Setting
    eager: bool
    count: Count

    @property
    def key(self) -> str:
        """Which line of the table it is, whatever is explored beside it."""
        return key_of(self.setting, self.eager)


def everything() -> list[tuple[Callable[..., Program], Setting]]:
    """All settings with their programs."""
    return [(ExchangeProgram, one) for one in EXCHANGES] + [(TrainingProgram, one) for one in TRAININGS]


def key_of(setting: Setting, eager: bool) -> str:
    """A line of the table: all that its counts depend on, but the code."""
    return f"{setting} {eager}"


def explore_place(place: int, eager: bool, plays: int = 0) -> Explored:
    """One of `everything`, in a process of its own; at most so many plays, where that is given."""
    torch.set_num_threads(1)
    make, setting = everything()[place]
    with tempfile.TemporaryDirectory() as folder:
        return explore_setting(make, setting, Ground(), Path(folder), eager=eager, plays=plays)


def explore_setting(
    make: Callable[..., Program],
    setting: Setting,
    ground: Ground,
    folder: Path,
    *,
    eager: bool,
    crashes: bool = True,
    plays: int = 0,
) -> Explored:
    """Try every order, and one crash at any point; a `Violation` where something does not hold."""
    program = make(setting, ground.of(setting, folder))
    undisturbed = Play(program, setting.ranks, eager=eager)
    try:
        while moves := undisturbed.moves(crashes=False):
            undisturbed.make(moves[0])
    finally:
        undisturbed.end()
    judge = Judge(undisturbed.seats, setting.due)
    count = explore(program, setting.ranks, judge, eager=eager, crashes=crashes, limit=plays)
    return Explored(setting, eager, count)
