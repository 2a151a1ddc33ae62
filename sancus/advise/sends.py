"""How often a policy sends: asked over virtual epochs, since policies are pure functions of what they see."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from sancus.errors import UserError
from sancus.plugins import build
from sancus.staleness import POLICIES
from sancus.staleness.base import LATER, SKIP, Policy, View

LEAST_EPOCHS, MOST_EPOCHS = 256, 1024  # virtual epochs that are looked at, after as many that are not


@lru_cache(maxsize=4096)
def share_sent(
    spec: str,
    ranks: int = 2,
    owner: int = 0,
    layer: int = 0,
    direction: Literal["forward", "backward"] = "forward",
) -> float:
    """The share of the epochs at which an owner's payload crosses, once the run is under way.

    1, the most, for a policy that depends on drift, and so on the data.
    """
    policy: Policy = build("policy", POLICIES, spec)
    if policy.absent:
        return 0.0
    if policy.drift_norm is not None or not policy.max_age:
        return 1.0
    epochs = min(MOST_EPOCHS, max(LEAST_EPOCHS, 3 * (policy.max_age + 1)))
    sent, version = [], 0  # the first use is a send
    for epoch in range(1, 2 * epochs):
        age = epoch - version
        view = View(epoch, layer, direction, owner, ranks, age, since_first=epoch, needed=True)
        crosses = age > policy.max_age or _ask(policy, spec, view)
        sent.append(crosses)
        version = epoch if crosses else version
    return _mean_of_period(sent[-epochs:])


def travels_later(spec: str) -> bool:
    """Whether payloads usually travel in the background, while ranks compute."""
    policy: Policy = build("policy", POLICIES, spec)
    if policy.absent or policy.drift_norm is not None or not policy.max_age:
        return False
    view = View(1, 0, "forward", 0, 2, 1, since_first=1, needed=True)
    return policy.decide(view) == LATER


def _ask(policy: Policy, spec: str, view: View) -> bool:
    """Ask the policy about one epoch: whether a payload crosses, at once or later."""
    try:
        return policy.decide(view) != SKIP
    except Exception as error:
        raise UserError(f"policy {spec!r}: decide raised {type(error).__name__}: {error}") from error


def _mean_of_period(sent: list[bool]) -> float:
    """The mean over the shortest period that repeats at least once; over all epochs where none does."""
    for length in range(1, len(sent) // 2 + 1):
        if sent[length:] == sent[:-length]:
            return sum(sent[:length]) / length
    return sum(sent) / len(sent)
