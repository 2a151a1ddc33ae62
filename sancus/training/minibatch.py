"""Schedule `minibatch`: steps of so many seeds each, over the neighbours that are drawn for them.

In every step each rank takes those seeds of the batch that it owns, draws their neighbourhood on the topology
that all ranks have, pulls the features it lacks, and differentiates the loss of its seeds; gradients are
summed up. Batches, draws and dropout masks are functions of seed, epoch, step and node: so p ranks compute
what one process computes, whatever the partition, and a resumed run goes on as if it had not ended. With one
batch of all seeds and all neighbours that is the full graph's step. All ranks make the same steps, with no
seeds where a batch has none of theirs. Evaluation is the full graph's, exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sancus.comm.layout import Layout
from sancus.errors import UserError
from sancus.metrics.declared import Metric
from sancus.models.settings import ModelSettings
from sancus.plugins import build
from sancus.sampling import SAMPLERS
from sancus.sampling.settings import SamplingSettings
from sancus.store import CACHES, NO_CACHE
from sancus.training.schedule import Schedule, Work
from sancus.training.settings import TrainingSettings

if TYPE_CHECKING:
    import torch

    from sancus.sampling.batch import Surroundings
    from sancus.sampling.gathered import GatheredTopology
    from sancus.store.features import FeatureStore
    from sancus.training.batch_line import BatchLine, ReadyBatch
    from sancus.training.evaluation import Evaluation


@dataclass(frozen=True)
class Supplies:
    """What the steps of a run draw on; made once, on every rank."""

    everything: GatheredTopology
    line: BatchLine
    store: FeatureStore
    around: Surroundings


class MiniBatch(Schedule):
    """Steps of --batch-size seeds and their drawn neighbours: p ranks compute what one process computes."""

    measures = (
        Metric("steps", "", "updates of the weights", "max"),
        Metric("sampled_edges", "", "edges that were drawn, over all hops and ranks", "sum"),
        Metric("input_rows", "", "rows of the features that samples read, over all ranks", "sum"),
        Metric("pulled_rows", "", "of these, rows that came from another rank", "sum"),
        Metric("cached_rows", "", "of these, rows of another rank that the cache had", "sum"),
        Metric("draw_seconds", "s", "drawing batches and looking rows up, beside training; mean", "mean"),
        Metric("pack_seconds", "s", "taking rows for others, and unpacking one's own; mean", "mean"),
        Metric("stall_seconds", "s", "in which training waited for draws and packs; mean", "mean"),
    )

    def __init__(self, sampling: SamplingSettings, shape: ModelSettings, training: TrainingSettings) -> None:
        self._settings = sampling
        self._training = training
        self._shape = shape
        self._supplies: Supplies | None = None
        self._figures: dict[str, float] = {}
        self._cache_rows: list[int] = []  # rows of others that each rank keeps

    def layout(self, ranks: int) -> Layout:
        """Every rank owns a part, and holds all layers."""
        if ranks > 1 and self._shape.norm == "batch":
            raise UserError(
                "--norm batch takes statistics of rows, and samples of several ranks share rows; "
                "choose --norm layer, or --ranks 1"
            )
        return Layout(parts=ranks)

    def prepare(self, work: Work) -> Evaluation:
        """Gather the topology, and say who has which training nodes."""
        from sancus.models.contract import traits_of
        from sancus.sampling.batch import Surroundings
        from sancus.sampling.gathered import gather_topology
        from sancus.store.features import FeatureStore, Places
        from sancus.store.parcel import Coding
        from sancus.training.asker import Ask
        from sancus.training.batch_line import BatchLine

        site, group = work.site, work.step.group
        if site is None:
            raise UserError("--schedule minibatch needs the graph: train with sancus.train, not with a step")
        if site.bench.device.type != "cpu":
            raise UserError("--batch-size samples on the CPU; add --device cpu")
        shrinks = traits_of(work.step.model).shrinks
        if not shrinks:
            _refuse_batch_norm(work.step.model)
        everything = gather_topology(site.shard, site.normalisation, group, spread=self._spread)
        own_seeds = work.task.rows_needed("train")
        coding = Coding(site.make_codec(self._settings.feature_codec), site.seed, self._training.epochs)
        places = Places(everything.owner, everything.row)
        store = FeatureStore(work.neighbourhood.input, places, group, coding)
        sampler = build("sampler", SAMPLERS, self._settings.sampler)
        fanouts = self._settings.fanouts(self._shape.layers)
        ask = Ask(everything, sampler, self._settings, fanouts, site.seed, site.bench.dtype, group)
        supplies = self._supplies = Supplies(
            everything,
            BatchLine(work.task.in_batches(ask), store, site.seed, self._settings.prefetch),
            store,
            Surroundings(group, site.bench.kernel, site.seed, shrinks, self._settings.fanout),
        )
        self._fill_cache(supplies, everything.own[own_seeds])
        return work.evaluation

    def train_epoch(self, epoch: int, work: Work) -> float:
        """One step a batch; this rank's share of the mean loss over the epoch's seeds."""
        assert self._supplies is not None, "a schedule is prepared first"
        self._figures = dict.fromkeys((metric.name for metric in self.measures), 0.0)
        work.neighbourhood.begin_epoch(epoch)
        loss = 0.0
        line = self._supplies.line
        for ready in line.of_epoch(epoch):
            loss += self._step(ready, work) * ready.batch.share
        self._figures |= {f"{stage}_seconds": spent for stage, spent in vars(line.seconds).items()}
        return loss

    def figures(self) -> dict[str, float]:
        """What was drawn and pulled in the last epoch."""
        return self._figures

    def describe(self) -> dict[str, Any]:
        """How batches were made."""
        supplies = self._supplies
        assert supplies is not None, "a schedule is prepared first"
        size = self._settings.batch_size
        return {
            supplies.line.source.unit: supplies.line.source.count,
            "steps_per_epoch": -(-supplies.line.source.count // size),
            "topology_edges": supplies.everything.edges,
            "cache_rows": self._cache_rows,
        }

    @property
    def _spread(self) -> bool:
        """Whether a rank has the edges of its own nodes alone."""
        return self._settings.topology == "owner"

    def _fill_cache(self, supplies: Supplies, seeds: torch.Tensor) -> None:
        """Keep the rows of other ranks that batches will read most; `seeds [t_i]` are the own ones."""
        import torch

        from sancus.store.column_sums import Columns
        from sancus.store.kept_rows import Reads, rows_to_keep

        group = supplies.around.group
        if self._settings.feature_cache == NO_CACHE or group.size == 1:
            return
        cache = build("cache", CACHES, self._settings.feature_cache)
        everything, fanouts = supplies.everything, self._settings.fanouts(self._shape.layers)
        rate = self._settings.batch_size / max(1, supplies.line.source.count)
        columns = Columns(everything.topology, group if self._spread else None)
        reads = Reads(columns, seeds, rate, fanouts)
        rows = rows_to_keep(cache, reads, everything.owner != group.rank)
        supplies.store.keep(rows)
        self._cache_rows = group.all_gather(torch.tensor([len(rows)])).flatten().tolist()

    def _step(self, ready: ReadyBatch, work: Work) -> float:
        """One update by the batch of all ranks; this rank's share of its mean loss."""
        from sancus.sampling.batch import SampledBatch

        supplies = self._supplies
        assert supplies is not None
        everything, sampled = supplies.everything, ready.sampled
        neighbourhood = SampledBatch(sampled, everything.ids[sampled.nodes], ready.rows, supplies.around)
        self._figures["steps"] += 1
        self._figures["sampled_edges"] += sum(len(col) for _, col, _ in sampled.entries)
        self._figures["input_rows"] += len(sampled.nodes)
        self._figures["pulled_rows"] += ready.pulled_rows
        self._figures["cached_rows"] += ready.cached_rows
        return work.step.descend(neighbourhood, lambda logits: ready.loss(neighbourhood.of_seeds(logits)))


def _refuse_batch_norm(model: torch.nn.Module) -> None:
    """Refuse statistics of rows in a model that keeps rows which only contributed to others."""
    from torch.nn.modules.batchnorm import _BatchNorm

    from sancus.models.norm import BatchNorm

    if any(isinstance(module, BatchNorm | _BatchNorm) for module in model.modules()):
        name = type(model).__name__
        raise UserError(
            f"model {name} takes statistics of rows, and a sample has rows that nobody asked for; take "
            f"exchange.targets(h) of what is added to each sum over neighbours, and set {name}.shrinks = True"
        )
