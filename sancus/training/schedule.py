"""Schedules: which rows and layers run when, and who waits for whom.

A schedule is a plug-in like a plan or a policy (`--schedule`). It lays the ranks out (how many parts of the
graph, copies of it, stages of the model) and trains an epoch with what a rank has: a `Work`. The full batch
is the first; mini-batches, a pipeline of layers and asynchronous training are others of the same shape. A
schedule's constructor gets the sections of the settings that it asks for by name (`SECTIONS`), and the
settings of its spec.

Imports no torch: ranks are laid out before anything is loaded.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sancus.comm.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from sancus.codecs.base import Codec
    from sancus.comm.mesh import Mesh
    from sancus.exchange.full_graph import FullGraph
    from sancus.graphs.normalise import Normalisation
    from sancus.graphs.operator import Operator
    from sancus.graphs.shards import Shard
    from sancus.metrics.declared import Metric
    from sancus.plans.base import Plan, Workbench
    from sancus.training.evaluation import Evaluation
    from sancus.training.step import Step
    from sancus.training.task import Task


@dataclass(frozen=True)
class Site:
    """What a schedule may build neighbourhoods of its own from."""

    shard: Shard  # the rank's part of the graph that is trained on
    operator: Operator  # its rows of `Â` and `Âᵀ`, as the model wants them normalised
    bench: Workbench  # kernel, dtype and device
    make_plan: Callable[..., Plan]  # `make_plan(operator=…)`: which rows cross, by the run's `--plan`
    make_codec: Callable[[str], Codec]  # from its spec
    seed: int  # of the run
    normalisation: Normalisation  # which `Â` the model wants


@dataclass(frozen=True)
class Work:
    """What a schedule works with on one rank."""

    neighbourhood: FullGraph  # the rank's rows, and what it needs of others
    task: Task  # what is asked about the own rows
    step: Step  # one update of the model's weights
    mesh: Mesh  # who takes part in what
    evaluation: Evaluation  # a fresh, exact pass of the whole model on this rank's rows
    site: Site | None = None  # None where a program has made the neighbourhood itself
    stop: Callable[[], int] = lambda: 0  # the number of a signal that asks this rank for the end; 0: none


class Schedule(abc.ABC):
    """Lays out the ranks, and trains epoch after epoch.

    A layout and an epoch are all that one must have; what else it needs has a place here too: something to
    make before the first epoch, to remember between epochs, to measure, and to say of the run.
    """

    measures: ClassVar[tuple[Metric, ...]] = ()  # figures of an epoch that no other schedule has

    @abc.abstractmethod
    def layout(self, ranks: int) -> Layout:
        """How so many ranks share parts, copies and stages; a number that cannot be laid out is refused."""

    @abc.abstractmethod
    def train_epoch(self, epoch: int, work: Work) -> float:
        """All steps of one epoch; this rank's share of the training loss. All ranks call it together."""

    def chunks(self, ranks: int) -> int:
        """By how many chunks the rows of every part are sorted; 1: they are not."""
        return 1

    def prepare(self, work: Work) -> Evaluation:
        """Make what the epochs need, once, before the first one; how the model is evaluated.

        All ranks call it together.
        """
        return work.evaluation

    def trained(self, epoch: int) -> bool:
        """Whether `train_epoch` has trained that epoch already, when it was called for one before."""
        return False

    @property
    def over(self) -> bool:
        """Whether training has ended by itself, before the last epoch that was asked for."""
        return False

    def keep_log(self, folder: Path, first_epoch: int, source: Path | None = None) -> None:
        """Write down in `folder` what this schedule has to say, from `first_epoch` on.

        `source` is the folder of the run that is gone on with. Called once, before the first epoch.
        """
        del folder, first_epoch, source  # most schedules have nothing to say

    def owns(self, name: str) -> bool:
        """Whether this rank trains a parameter, or has a buffer, by name; others have what it has not."""
        return True

    def collect(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors by name that ranks hold between them, from those of this one. All ranks call it."""
        return dict(tensors)

    def state(self) -> dict[str, torch.Tensor]:
        """What this rank's schedule remembers from epoch to epoch, by name, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on with what `state` gave; called after `prepare`.

        Where another number of ranks has the same parts of the graph, it is that of all ranks with this part.
        """
        assert not state, "a schedule that remembers takes it up again"

    def figures(self) -> dict[str, float]:
        """What this rank measured in the last epoch: all `measures`, by their names."""
        return {}

    def describe(self) -> dict[str, Any]:
        """Facts of the run that only this schedule has, for `run.json`, JSON-ready; the same on all ranks.

        All ranks call it together, after the last epoch.
        """
        return {}
