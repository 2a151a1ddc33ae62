"""Schedule `async`: no rank waits for another; steps are merged as they come (DIGEST-A, §4.3).

Between two checkpoints (a *stretch*) nothing is collective: every rank repeats a step from the weights that
it got last, and the rank that holds the weights joins what it changed (`sancus.training.merging`). Rows of
others are histories, pushed and asked for every so many steps of each rank (`sancus.exchange.courier`).
After a stretch all ranks come together, and evaluate the snapshots that were taken meanwhile, exactly.

Imports no torch: ranks are laid out before anything is loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sancus.comm.layout import Layout
from sancus.errors import UserError
from sancus.metrics.declared import Metric
from sancus.models.settings import ModelSettings
from sancus.training.async_settings import AsyncSettings
from sancus.training.schedule import Schedule, Work
from sancus.training.settings import TrainingSettings

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from sancus.training.evaluation import Evaluation
    from sancus.training.stretch import Stretches


class Factors(Protocol):
    """What this schedule looks at in the settings of the traffic."""

    staleness: str
    backward: str


class Output(Protocol):
    """And in those of what a run leaves behind."""

    checkpoint_every: int


class Asynchronous(Schedule):
    """No rank waits for another: each repeats steps of its own, which are merged as they come (DIGEST-A)."""

    measures = (
        Metric("trained_seconds", "s", "seconds of training so far, without evaluation", "max"),
        Metric("weight_delay", "merges", "merges between a step's weights and its own merge; mean", "max"),
        Metric("largest_delay", "merges", "the same, the largest", "max"),
    )

    def __init__(
        self,
        asynchronous: AsyncSettings,
        factors: Factors,
        shape: ModelSettings,
        training: TrainingSettings,
        output: Output,
    ) -> None:
        self.settings = asynchronous
        self._factors = factors
        self._shape = shape
        self._training = training
        self._every = output.checkpoint_every
        self._stretches: Stretches | None = None

    def layout(self, ranks: int) -> Layout:
        """Every rank is a part of the graph, and holds all layers."""
        self._check()
        if ranks > 1 and importlib.util.find_spec("zmq") is None:
            raise UserError(
                "--schedule async needs ZeroMQ between processes, and pyzmq is not installed; "
                "pip install 'sancus[async]'"
            )
        return Layout(parts=ranks)

    def _check(self) -> None:
        """Refuse settings that have no meaning here."""
        training, factors = self._training, self._factors
        instead = "leave it out, or choose --schedule full"
        if training.parameters != "average":
            raise UserError(
                f"--parameters {training.parameters}: ranks of --schedule async step for themselves; "
                "choose --parameters average, or --preset digest-a"
            )
        if factors.staleness.partition(":")[0] not in ("periodic", "drop"):
            raise UserError(
                f"--staleness {factors.staleness}: ranks of --schedule async have no epoch in common; "
                "choose periodic:period=10 or drop"
            )
        if factors.backward != "drop":
            raise UserError(
                f"--backward {factors.backward}: nobody waits for gradients in --schedule async; "
                "choose --backward drop, or --preset digest-a"
            )
        if training.label_rate:
            raise UserError(f"--label-rate {training.label_rate}: labels are drawn for an epoch; {instead}")
        if training.patience:
            raise UserError(
                f"--patience {training.patience}: --schedule async evaluates when it has ended; {instead}"
            )
        if self._shape.norm == "batch":
            raise UserError(
                "--norm batch: its statistics are of all ranks' rows, which wait for nobody; "
                "choose --norm layer, or --schedule full"
            )

    def prepare(self, work: Work) -> Evaluation:
        """Nothing crosses yet: ranks come together when the first stretch begins."""
        from sancus.training.stretch import Stretches

        if next(work.step.model.parameters()).device.type != "cpu":
            raise UserError("--schedule async trains on the CPU; add --device cpu")
        self._stretches = Stretches(work, self._training, self.settings, self._every)
        return work.evaluation

    def train_epoch(self, epoch: int, work: Work) -> float:
        """Train until the next checkpoint, or take up an epoch of it: its weights, and its figures."""
        return self.stretches.train_epoch(epoch)

    @property
    def stretches(self) -> Stretches:
        """What this rank trains with."""
        assert self._stretches is not None, "a schedule is prepared first"
        return self._stretches

    def trained(self, epoch: int) -> bool:
        """Whether the last stretch went as far."""
        return epoch in self.stretches.facts

    @property
    def over(self) -> bool:
        """Whether time was up."""
        return self.stretches.over

    def keep_log(self, folder: Path, first_epoch: int, source: Path | None = None) -> None:
        """One line a merge, at the rank that merges."""
        self.stretches.keep_log(folder, first_epoch, source)

    def state(self) -> dict[str, torch.Tensor]:
        """How many steps this rank made; what is known of all merges."""
        return self.stretches.state()

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on counting; the histories come back with the exchange."""
        self.stretches.restore(state)

    def figures(self) -> dict[str, float]:
        """Of the epoch that was taken up last."""
        return self.stretches.figures

    def describe(self) -> dict[str, Any]:
        """Delays, ages, and how fast each rank was."""
        return self.stretches.describe()
