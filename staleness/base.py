"""The contract of a policy.

Words (design §2, §4): a *stream* is (layer, direction, owner). At each use its owner decides SEND or SKIP; on
SKIP every receiver uses its *history* of the stream, the payload that was last sent. The *version* of a
history is the epoch it was made in, its *age* is now − version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

SEND = True
SKIP = False


@dataclass(frozen=True)
class View:
    """What a policy may look at: replicated values, equal on all ranks."""

    epoch: int
    layer: int
    direction: Literal["forward", "backward"]
    owner: int
    ranks: int
    age: int  # of what the receivers would use on SKIP


class Policy(Protocol):
    """A rule at the owner.

    The first use of a stream is SEND without asking, and so is every use at which `view.age` is beyond
    `max_age`: the bound is enforced by the caller, so that no rule can break it. `max_age = 0` means
    that nothing is ever stale, and no history is kept.
    """

    max_age: int

    def decide(self, view: View) -> bool:
        """`SEND` or `SKIP`, as a pure function of the view."""
        ...
