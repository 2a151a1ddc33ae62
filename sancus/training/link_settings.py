"""The settings of link prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sancus.errors import UserError

NEUTRAL: dict[str, Any] = {  # settings of node classification, and the value that leaves edges alone
    "inductive": False,
    "label_rate": 0.0,
    "class_weights": "none",
    "label_smoothing": 0.0,
}
SCHEDULES_OF_LINKS = ("full", "minibatch")


@dataclass(frozen=True)
class LinkSettings:
    """Which edges are held out, and what edges are told apart from."""

    held_out: float = 0.1
    """Of --task link: share of the edges that validate, and as many that test; drawn by --seed."""
    negatives: int = 1
    """Of --task link: pairs of nodes drawn for every edge of the loss."""
    rivals: int = 20
    """Of --task link: pairs drawn for every edge of a score."""
    leave_out: bool = True
    """Of --task link: the edges of a batch, and their reverses, are not aggregated in its step."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 0.5:
            raise UserError(f"--held-out {self.held_out}: must be above 0 and below 0.5")
        for name in ("negatives", "rivals"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)}: must be at least 1")


def check_links(settings: Mapping[str, Any], schedule: str, of_subgraphs: bool) -> None:
    """Refuse what does not go together with `--task`; `settings` are all, by the names of their flags."""
    if settings["task"] != "link":
        for name, neutral in vars(LinkSettings()).items():
            if settings[name] != neutral:
                raise UserError(f"{_flag(name, settings[name])} is of --task link; add it, or leave it out")
        if settings["metric"] == "mrr":
            raise UserError("--metric mrr is of --task link; choose auto, accuracy, micro-f1 or roc-auc")
        return
    if settings["metric"] not in ("auto", "roc-auc", "mrr"):
        raise UserError(f"--metric {settings['metric']}: --task link has auto (roc-auc), roc-auc and mrr")
    for name, neutral in NEUTRAL.items():
        if settings[name] != neutral:
            flag = _flag(name, settings[name])
            raise UserError(f"{flag} is about labels of nodes; leave it out, or --task link")
    if schedule.partition(":")[0] not in SCHEDULES_OF_LINKS:
        raise UserError(f"--task link has no --schedule {schedule}; leave it out, or add --batch-size")
    if settings["topology"] != "mapped":
        raise UserError("--task link needs all edges on every rank; leave --topology owner out")
    if of_subgraphs:
        raise UserError("--task link draws hop by hop; choose --sampler neighbour or labor")


def _flag(name: str, value: object) -> str:
    word = f"--{name.replace('_', '-')}"
    if value is False:
        return f"--no-{name.replace('_', '-')}"
    return word if value is True else f"{word} {value}"
