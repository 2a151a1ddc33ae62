"""Where the seconds of an epoch go: SuperGCN's split of it, with agreement as a part of its own.

Each rank measures, by its stopwatch, what it computes and what it spends in messages of each kind. How long
it waited for slower ranks it cannot know alone: a message that is late looks like one that is large. So ranks
compare. For messages of one kind, what the rank spent that spent least is the *transfer*; what another spent
above that is *waiting*, for a slower rank, or for more bytes. It costs no message, only a few numbers in the
statement that ranks make after every epoch. Ranks that take turns in being late within one kind hide some of
it, so waiting is a lower bound.

The parts of a rank add up to its seconds by construction: `other` is what the others leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sancus.comm.stopwatch import Lap

COMPUTED = ("aggregation_seconds", "dense_seconds", "codec_seconds")
MOVED = ("forward_seconds", "backward_seconds", "parameter_seconds")
AGREED = "agreement_seconds"
MEASURED = (*COMPUTED, *MOVED, AGREED)  # what ranks tell each other
PARTS = (*COMPUTED, "transfer_seconds", "waiting_seconds", AGREED, "other_seconds")  # of `seconds`

Times = Mapping[str, float]


def measured(lap: Lap) -> dict[str, float]:
    """What one rank knows of its epoch: `seconds` in all, `hidden_seconds`, and `MEASURED`."""
    figures = {name: lap.seconds[name.removesuffix("_seconds")] for name in MEASURED}  # type: ignore[index]
    whole = {"seconds": lap.total, "hidden_seconds": lap.hidden, "comm_seconds": communicated(figures)}
    return figures | whole


def communicated(times: Times) -> float:
    """Seconds in the transport, for whatever reason."""
    return sum(times[name] for name in (*MOVED, AGREED))


def split_of_rank(own: Times, everyone: Sequence[Times]) -> dict[str, float]:
    """The `PARTS` of one rank's seconds, after it has heard those of all."""
    least = {name: min(times[name] for times in everyone) for name in (*MOVED, AGREED)}
    parts = {name: own[name] for name in COMPUTED}
    parts["transfer_seconds"] = sum(least[name] for name in MOVED)
    parts["waiting_seconds"] = sum(own[name] - least[name] for name in (*MOVED, AGREED))
    parts[AGREED] = least[AGREED]
    return parts | {"other_seconds": max(0.0, own["seconds"] - sum(parts.values()))}


def split_of_run(everyone: Sequence[Times]) -> dict[str, float]:
    """The `PARTS` of an epoch: means of the ranks, and `other` what is left of the slowest rank's seconds.

    So they add up to `seconds`, which is the slowest rank's; by how much the others were faster, for example
    because they began later, is in `other`.
    """
    splits = [split_of_rank(times, everyone) for times in everyone]
    parts = {name: sum(split[name] for split in splits) / len(splits) for name in PARTS[:-1]}
    longest = max(times["seconds"] for times in everyone)
    return parts | {"other_seconds": max(0.0, longest - sum(parts.values()))}
