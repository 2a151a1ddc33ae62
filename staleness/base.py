"""The contract of a staleness policy: what it may look at (`View`), and what it answers (`Answer`).

Words (docs/design.md): a *stream* is (layer, direction, owner). At each use its owner decides SEND or SKIP;
on SKIP every receiver uses its *history* of the stream, the payload that was last sent. The third answer is
LATER: the payload travels in the background and is the history of the next use. The *version* of a history is
the epoch it was made in, its *age* is now − version. *Drift* is how far the owner's current payload is from
what the receivers hold.

The caller keeps three promises, so that no rule can break them: the first use of a stream is SEND without
asking; so is every use at which a history that some rank needs would pass `max_age`; and all ranks act on
the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable


class Answer(IntEnum):
    """What a policy says; a plain `True` is SEND, `False` is SKIP."""

    SKIP = 0
    SEND = 1
    LATER = 2


SKIP, SEND, LATER = Answer
Norm = Literal["mean", "relative"]


@dataclass(frozen=True)
class View:
    """What a policy may look at. All but `drift` are equal on all ranks."""

    epoch: int
    layer: int
    direction: Literal["forward", "backward"]
    owner: int
    ranks: int
    age: int  # of what the receivers would use on SKIP; at least 1
    since_first: int  # epochs since the stream's first use
    needed: bool  # whether any other rank has a nonzero block for this owner's rows
    drift: float = 0.0  # for a policy with a `drift_norm`


class Policy(Protocol):
    """A rule at the owner.

    `max_age` is the hard cap; 0 means that nothing is ever stale and no history is kept. A policy with a
    `drift_norm` is asked by the owner alone, with the drift in that norm, and its answer is gathered; one
    without is asked by every rank for every owner, needs no message, and so must be a pure function of
    its view. With `absent`, nothing is ever sent and remote rows count as zero.
    """

    max_age: int
    drift_norm: Norm | None
    absent: bool

    def decide(self, view: View) -> Answer | bool:
        """`SEND`, `SKIP` or `LATER`."""
        ...


YesNo = Any  # a boolean for every row, of the library that the numbers are of


class Numbers(Protocol):
    """A number for every row: an array or a tensor, of any library."""

    def __gt__(self, other: float, /) -> YesNo:
        """Row by row."""
        ...


@runtime_checkable
class RowPolicy(Policy, Protocol):
    """A rule that picks rows of a payload: the others stay with the receivers as they hold them.

    It has a `drift_norm` and a `max_age`, which is that of every row; older rows cross whatever it says. It
    is asked by the owner alone, once for all rows, and every receiver hears by a bitmap which rows come. Its
    `decide` is not asked.
    """

    def pick(self, drift: Numbers) -> YesNo:
        """From how far each row `[n]` has drifted: which cross `[n]`."""
        ...


class Replicated:
    """Base of policies that look at replicated values only."""

    drift_norm: ClassVar[Norm | None] = None
    absent: ClassVar[bool] = False


def check_policy(policy: Policy) -> None:
    """Raise a `ValueError` where a policy, perhaps a user's own, does not have what the contract asks for."""
    check_bound("max_age", getattr(policy, "max_age", None))
    norm, absent = getattr(policy, "drift_norm", ""), getattr(policy, "absent", None)
    if norm not in (None, *get_args(Norm)):
        raise ValueError(f"drift_norm={norm!r} must be None, {' or '.join(map(repr, get_args(Norm)))}")
    if not isinstance(absent, bool):
        raise ValueError(f"absent={absent!r} must be True or False")
    if not callable(getattr(policy, "decide", None)):
        raise ValueError("it has no method decide(view)")


def check_bound(name: str, value: object) -> None:
    """An age bound is a whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}={value!r} must be a whole number that is not negative")


@dataclass(frozen=True)
class Bounded(Replicated):
    """Base of policies whose only setting is a bound on the age."""

    bound: int = 1

    def __post_init__(self) -> None:
        check_bound("bound", self.bound)

    @property
    def max_age(self) -> int:
        """The bound itself."""
        return self.bound
