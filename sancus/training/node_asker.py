"""Batches of training nodes."""

from __future__ import annotations

from sancus.kernels.topology import Sampled
from sancus.sampling.base import Batch, SampleKey
from sancus.sampling.batch_source import BatchSource, batch_source
from sancus.sampling.gathered import gather_numbers
from sancus.sampling.spread import spread_batches
from sancus.training.asker import Ask, Loss
from sancus.training.task import Task


class NodeAsker:
    """Batches of training nodes, each asked at its owner."""

    unit = "training_nodes"

    def __init__(self, task: Task, ask: Ask) -> None:
        """All ranks call it together."""
        self._task = task
        self._everything = ask.everything
        self._rank = ask.group.rank
        training = gather_numbers(ask.everything, task.rows_needed("train"), ask.group)
        self.count = len(training)
        ground = ask.ground(training)
        self._batches: BatchSource = (
            spread_batches(ask.sampler, ground, ask.group, ask.everything.owner)
            if ask.settings.topology == "owner"
            else batch_source(ask.sampler, ground, ask.group)
        )
        self.collective = self._batches.collective

    def of_epoch(self, epoch: int) -> list[Batch]:
        """As the sampler cuts them."""
        return self._batches.of_epoch(epoch)

    def sample(self, batch: Batch, key: SampleKey) -> tuple[Sampled, Loss]:
        """The own seeds' neighbours; the loss of the own seeds."""
        own = self._everything.owner[batch.seeds] == self._rank
        seeds, weight = batch.seeds[own], None if batch.weight is None else batch.weight[own]
        sampled = self._batches.sample(batch, seeds, key)
        share = 1.0 if weight is not None else batch.share
        return sampled, self._task.restricted(self._everything.row[seeds], share, weight).loss
