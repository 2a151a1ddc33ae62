"""The merge: one rank holds the weights, and joins what each step of each rank changed, as it comes.

`W ← W + (W_new − W_base) / p` (`delta`): the paper (DIGEST §4.3) does not say how uploads are joined; this is
the mean of the weights where all bases agree, and a rank's optimiser stays its own. With `gradient` the steps
are those of one optimiser beside the weights: its gradient is `p` times the upload, its rate `1/p` of the
run's, so that the steps of p ranks are one of the run's. The version of the weights is the number of merges.

A rank begins a step only with a *ticket*, and every step that began is merged: so merges equal uploads, and
a run has exactly as many as it was asked for. Every merge is a row of a log, from which the same weights can
be computed again (`sancus.training.replaying`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from sancus.training.joining import Join

LARGEST_BIN = 1000  # delays and ages above it are counted as this
Row = dict[str, Any]  # of the log


@dataclass(frozen=True)
class Upload:
    """What a step of a rank says of itself; what it changed travels beside it."""

    rank: int
    step: int  # of this rank, from 0
    base: int  # version of the weights that it began with
    loss: float  # this rank's share
    used: list[list[int]]  # [layer, owner, version] of histories that are others than in its last step
    stop: bool = False  # a signal asks this rank for the end, or it met a number that is not finite

    def facts(self) -> dict[str, Any]:
        """JSON-ready."""
        return vars(self)


@dataclass(frozen=True)
class Ticket:
    """What a rank may do next."""

    go: bool  # begin a step, with the weights that come along
    wait: bool = False  # ask again: others are too far behind
    version: int = 0  # of the weights


@dataclass
class Books:
    """What is known of the merges so far; small, whatever their number."""

    merges: int = 0
    seconds: float = 0.0  # of training
    steps: list[int] = field(default_factory=list)  # [p] merged
    losses: list[float] = field(default_factory=list)  # [p] of each rank's last step
    delays: Counter[int] = field(default_factory=Counter)  # merges between a base and its merge
    ages: Counter[int] = field(default_factory=Counter)  # of histories: steps that their owner had made since
    waits: int = 0  # tickets that were refused because others were behind

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        counted = {name: sorted(getattr(self, name).items()) for name in ("delays", "ages")}
        return {**vars(self), **counted}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Books:
        """What `to_dict` gave."""
        counted = {
            name: Counter({int(value): int(count) for value, count in content[name]})
            for name in ("delays", "ages")
        }
        return cls(**{**content, **counted})


@dataclass(frozen=True)
class Rules:
    """When ranks may go on."""

    ranks: int
    target: int  # merges at which nobody begins another step
    max_delay: int = 0
    seconds: float = 0.0  # of training, after which nobody begins another; 0: no limit


Note = Callable[[Row, torch.Tensor, Books, list[int]], None]


class Merger:
    """The weights, and who may begin another step. One thread calls it."""

    def __init__(
        self,
        weights: torch.Tensor,
        books: Books,
        rules: Rules,
        join: Join,
        now: Callable[[], float],
        note: Note = lambda row, weights, books, ages: None,
    ) -> None:
        """`note` hears of each merge: its row, the weights, the books, ages of histories."""
        self.weights = weights  # [k]
        self.books = books
        self._rules = rules
        self.join = join
        self._now = now
        self._note = note
        self._start = now() - books.seconds
        self._begun = books.merges
        self._target = rules.target
        self._least = books.merges + rules.ranks  # one epoch is always made
        self._versions: list[dict[tuple[int, int], int]] = [{} for _ in range(rules.ranks)]
        self._seen: list[list[int]] = [list(books.steps) for _ in range(rules.ranks)]  # when a step began

    def ticket(self, rank: int) -> Ticket:
        """May this rank begin a step?"""
        rules, steps = self._rules, self.books.steps
        if rules.seconds and self._now() - self._start >= rules.seconds:
            self.end_soon()
        if self._begun >= self._target:
            return Ticket(go=False)
        if rules.max_delay and steps[rank] - min(steps) > rules.max_delay:
            self.books.waits += 1
            return Ticket(go=False, wait=True)
        self._begun += 1
        self.began(rank)
        return Ticket(go=True, version=self.books.merges)

    def began(self, rank: int) -> None:
        """A rank begins a step: ages of its histories are as of now."""
        self._seen[rank] = list(self.books.steps)

    def end_soon(self) -> None:
        """Nobody begins another step than it takes to end with a whole epoch: as many merges as ranks."""
        ranks = self._rules.ranks
        self._target = min(self._target, max(self._least, -(-self._begun // ranks) * ranks))

    def merge(self, upload: Upload, change: torch.Tensor) -> None:
        """Join what a step changed."""
        books, rank = self.books, upload.rank
        assert upload.step == books.steps[rank] and upload.base <= books.merges, "an upload came twice"
        self.weights = self.join(self.weights, change, upload.base)
        delay = books.merges - upload.base
        books.merges += 1
        books.steps[rank] += 1
        books.losses[rank] = upload.loss
        books.seconds = self._now() - self._start
        books.delays[min(delay, LARGEST_BIN)] += 1
        self._versions[rank] |= {(layer, owner): version for layer, owner, version in upload.used}
        seen, held = self._seen[rank], self._versions[rank]
        ages = [max(0, seen[owner] - version) for (_, owner), version in held.items()]
        books.ages.update(min(age, LARGEST_BIN) for age in ages)
        if upload.stop:
            self.end_soon()
        self._note(self._row(upload), self.weights, books, ages)

    def _row(self, upload: Upload) -> Row:
        """What the log says of the merge."""
        books = self.books
        return {
            "epoch": (books.merges - 1) // self._rules.ranks,
            "merge": books.merges,
            "rank": upload.rank,
            "step": upload.step,
            "base": upload.base,
            "used": upload.used,
            "loss": upload.loss,
            "seconds": round(books.seconds, 6),
            "weights": digest_of(self.weights),
        }


def digest_of(weights: torch.Tensor) -> str:
    """16 letters that differ where weights `[k]` do."""
    return xxhash.xxh3_64_hexdigest(weights.detach().contiguous().view(torch.uint8).numpy().data)
