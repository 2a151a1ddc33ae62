"""What one trial does, drawn from its seed: a run, and what disturbs it. The same seed is the same trial.

Whatever has a table is drawn from that table: a preset, model, codec or schedule that is added to one takes
part from then on.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from sancus.codecs import CODECS
from sancus.config.presets import PRESETS
from sancus.models import MODELS
from sancus.parameters import EXACT, PARAMETER_CODECS
from sancus.training import SCHEDULES

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)  # signals that ask a run to end
SIGNALS = (*ASKING, signal.SIGKILL, signal.SIGSTOP)  # one of SIGSTOP is followed by SIGCONT
DISK = ("disk full", "disk full for a while", "checkpoints read-only")
DAMAGE = ("byte flipped in the newest checkpoint", "byte flipped in the cache")
NETWORK = ("link down for a while", "slow link")
SIGNAL = "signal"
KINDS = (SIGNAL, *DISK, *DAMAGE, *NETWORK)
WEIGHTS = (11, 1, 1, 1, 2, 2, 1, 1)  # of KINDS
MPI_SHARE = 0.06  # its ranks are processes that import torch, which take ten times as long as forks
LONGEST_START = 1.5  # seconds after which a disturbance by the clock comes at the latest
LONGEST_PAUSE = 0.5


@dataclass(frozen=True)
class Moment:
    """When a command is disturbed: after so many epochs of the run, or so many seconds of the command."""

    epochs: int | None
    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s after its start" if self.epochs is None else f"at epoch {self.epochs}"


@dataclass(frozen=True)
class Disturbance:
    """One thing that goes wrong, while a command runs, or between two commands (`DAMAGE`)."""

    kind: str
    moment: Moment
    number: int = 0  # the signal
    target: str = ""  # who gets it: launcher, all, or the number of a rank
    pause: float = 0.0  # seconds until SIGCONT, or until the link or the disk is back
    where: float = 0.0  # the byte that flips, as a share of all bytes there are

    def __str__(self) -> str:
        if self.kind == SIGNAL:
            return f"{signal.Signals(self.number).name} to {self.target}, {self.moment}"
        return self.kind if self.kind in DAMAGE else f"{self.kind}, {self.moment}"

    @property
    def name(self) -> str:
        """What it is called in the table."""
        if self.kind != SIGNAL:
            return self.kind
        name = signal.Signals(self.number).name
        to = self.target if self.target in ("launcher", "all") else "one rank"
        return f"{name}{', then SIGCONT,' if self.number == signal.SIGSTOP else ''} to {to}"


@dataclass(frozen=True)
class Trial:
    """A run, and what disturbs it, one after the other."""

    seed: int
    backend: str
    ranks: int
    epochs: int
    flags: tuple[str, ...]
    cold: bool  # whether the disturbed run has to build its shards
    restarts: int
    disturbances: tuple[Disturbance, ...]

    @property
    def networked(self) -> bool:
        """Whether a trial needs a network of its own."""
        return any(one.kind in NETWORK for one in self.disturbances)

    def __str__(self) -> str:
        words = " ".join(self.flags)
        cache = "cold" if self.cold else "warm"
        head = f"{self.ranks} ranks, {self.backend}, {cache} cache, --restarts {self.restarts}: {words}"
        return "\n".join([head, *(f"  {number + 1}. {one}" for number, one in enumerate(self.disturbances))])


def draw(seed: int) -> Trial:
    """The trial of a seed."""
    draws = random.Random(seed)
    ranks = draws.choices((1, 2, 3, 4), (2, 10, 7, 1))[0]
    backend = "mpi" if ranks > 1 and draws.random() < MPI_SHARE else "gloo"
    ranks = min(ranks, 2) if backend == "mpi" else ranks
    epochs = draws.randrange(20, 45)
    flags, cold, restarts = tuple(_flags(draws, ranks)), draws.random() < 0.4, draws.choice((0, 0, 2))
    disturbances: list[Disturbance] = []
    for _ in range(draws.choices((1, 2, 3), (4, 3, 2))[0]):
        disturbance = _disturbance(draws, ranks, epochs)
        if disturbance.kind in DAMAGE and not disturbances:  # there has to be something that is damaged
            at = Moment(draws.randrange(epochs // 3, epochs * 3 // 4), 0.0)
            disturbances.append(Disturbance(SIGNAL, at, int(signal.SIGTERM), "launcher"))
        disturbances.append(disturbance)
    return Trial(seed, backend, ranks, epochs, flags, cold, restarts, tuple(disturbances))


def _flags(draws: random.Random, ranks: int) -> list[str]:
    """What is trained, and how."""
    nodes, degree = draws.randrange(40, 200), draws.choice((3, 6, 10))
    flags = [f"synthetic:nodes={nodes},features=12,classes=4,degree={degree},seed={draws.randrange(100)}"]
    flags += ["--model", draws.choice(sorted(MODELS))]
    schedule = draws.choice(sorted(SCHEDULES.keys() - {"async"}))
    flags += _of_schedule(draws, schedule, ranks)
    if draws.random() < 0.3 and "digest" not in " ".join(flags):  # whose ranks average, in full precision
        flags += ["--parameter-codec", draws.choice(sorted(PARAMETER_CODECS.keys() - {EXACT}))]
    flags += ["--partitioner", draws.choice(("metis", "random", "contiguous"))]
    flags += ["--hidden", "8", "--dropout", draws.choice(("0", "0.5")), "--seed", str(draws.randrange(1000))]
    flags += ["--dtype", draws.choice(("float32", "float64"))]
    flags += ["--optimizer", draws.choice(("adam", "sgd")), "--eval-every", draws.choice(("1", "3"))]
    flags += ["--agree", draws.choice(("layer", "epoch"))]
    flags += ["--checkpoint-every", draws.choice(("0", "1", "3", "7"))]
    return flags


def _of_schedule(draws: random.Random, schedule: str, ranks: int) -> list[str]:
    """The schedule, and the factors of the traffic that it goes with."""
    if schedule == "minibatch":
        sampler, fanout = draws.choice(("neighbour", "labor")), draws.choice(("3", "3", "all"))
        flags = ["--preset", "exact", "--batch-size", str(draws.choice((8, 40)))]
        return [*flags, "--sampler", sampler, "--fanout", fanout]
    if schedule == "pipeline":
        return _of_pipeline(draws, ranks)
    preset = _preset(draws)
    flags = ["--preset", preset, "--schedule", schedule]
    if draws.random() < 0.3:
        flags += ["--codec", _codec(draws)]
        flags += [] if preset.startswith("bns") else ["--error-feedback"]
    return flags


def _of_pipeline(draws: random.Random, ranks: int) -> list[str]:
    """Stages, the chunks that go through them, and how those of others are remembered."""
    stages = draws.choice([count for count in range(1, ranks + 1) if ranks % count == 0])
    form = draws.choice((f"gnnpipe:{stages}", f"gnnpipe:{stages}:paper"))
    flags = ["--preset", form, "--layers", "4", "--chunks", draws.choice(("2", "3", "5"))]
    flags += ["--chunk-order", draws.choice(("shuffle", "fixed", "alternate"))]
    flags += ["--history-every", draws.choice(("1", "3"))]
    flags += ["--history-start", draws.choice(("exact", "zeros"))]
    flags += ["--stale-gradients"] if draws.random() < 0.3 else []
    flags += ["--boundary-codec", _codec(draws)] if draws.random() < 0.4 else []
    return flags + (["--codec", _codec(draws)] if draws.random() < 0.3 else [])


def _codec(draws: random.Random) -> str:
    return draws.choice(sorted(CODECS.keys() - {"auto"}))


def _preset(draws: random.Random) -> str:
    """Any preset of the full batch, in any of its forms.

    Ranks that wait for nobody never end as they did before: those are in tests/faults/test_async.py.
    """
    full = {name for name in PRESETS if "batch_size" not in PRESETS[name].settings}
    name = draws.choice(sorted(full - {"gnnpipe", "digest-a"}))
    preset, spec = PRESETS[name], name
    if preset.level is not None and draws.random() < 0.7:
        number = draws.choice(("0.1", "0.3")) if preset.level.share else str(draws.randint(1, 3))
        spec += f":{number}"
    return spec if preset.paper is None or draws.random() < 0.6 else f"{spec}:paper"


def _disturbance(draws: random.Random, ranks: int, epochs: int) -> Disturbance:
    kind = draws.choices(KINDS, WEIGHTS)[0]
    by_clock = draws.random() < 0.35
    moment = Moment(None if by_clock else draws.randrange(epochs * 3 // 4), draws.uniform(0, LONGEST_START))
    target = _target(draws, ranks)
    return Disturbance(
        kind,
        moment,
        int(draws.choice(SIGNALS)) if kind == SIGNAL else 0,
        target if kind == SIGNAL else "",
        draws.uniform(0, LONGEST_PAUSE),
        draws.random(),
    )


def _target(draws: random.Random, ranks: int) -> str:
    choices: Sequence[str] = ("launcher", "launcher", "all", str(draws.randrange(ranks)))
    return draws.choice(choices)
