"""What a run's model is trained for, from its settings and a rank's shard."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sancus.comm.group import Group
from sancus.comm.ledger import Entry
from sancus.config.settings import Config
from sancus.errors import UserError
from sancus.exchange.labels import LabelDraw
from sancus.graphs.derive import Total
from sancus.graphs.shards import Shard
from sancus.training.edge_split import split_edges
from sancus.training.hidden_labels import HiddenLabels
from sancus.training.link_task import LINK_METRICS, LinkTask
from sancus.training.node_task import NodeTask, check_metric, class_weights
from sancus.training.pair_loss import PairLoss
from sancus.training.task import SPLITS, Task


def ask_of(config: Config, shard: Shard, group: Group, device: torch.device) -> tuple[Shard, Task]:
    """The task of a run, and the shard that it leaves to train on; all ranks of `group` call it together."""
    if config.training.task == "link":
        return _ask_for_links(config, shard, group)
    return shard, make_task(config, shard, group, device)


def _ask_for_links(config: Config, shard: Shard, group: Group) -> tuple[Shard, LinkTask]:
    """The shard without held-out edges, and what is asked about them."""
    seed, total = config.training.seed, total_over(group)
    kept, split = split_edges(shard, total, seed, config.link.held_out)
    counts = total(np.array([len(split.edges[part]) for part in SPLITS], np.float64))
    for part, count in zip(SPLITS, counts.tolist(), strict=True):
        if not count:
            edges, share = shard.manifest["graph"]["edges"], config.link.held_out
            raise UserError(
                f"--held-out {share} of {edges} edges leaves none to {part}; "
                "choose another share, or a larger graph"
            )
    graph = shard.manifest["graph"]
    pairs = PairLoss(graph["nodes"], bool(graph["directed"]), seed, config.link)
    metric = LINK_METRICS[config.training.metric]
    task = LinkTask(split, float(counts[0]), group, pairs, config.shape.layers, metric)
    return kept, task


def make_task(config: Config, shard: Shard, group: Group, device: torch.device) -> NodeTask:
    """Labels and split of the own rows, and the weights of the classes over all ranks."""
    if config.training.task == "link":
        raise UserError("task='link' takes edges out of the graph; train with sancus.train(task='link')")
    graph, training = shard.manifest["graph"], config.training
    dtype, multilabel = getattr(torch, training.dtype), graph["multilabel"]
    labels = torch.from_numpy(np.array(shard.labels)).to(device, dtype if multilabel else torch.int64)
    rows = {split: torch.from_numpy(np.flatnonzero(shard.mask(split))).to(device) for split in SPLITS}
    auc = check_metric(training.metric, multilabel=multilabel)
    count, weights = float(graph["train"]), None
    if training.class_weights != "none":
        counts = torch.from_numpy(total_over(group)(_class_counts(shard))).to(device)
        weights = class_weights(training, counts, multilabel=multilabel)
    if weights is not None:
        count = count if multilabel else float((weights * counts[:-1]).sum())
        weights = weights.to(dtype)
    return NodeTask(labels, rows, count, weights, training.label_smoothing, auc, graph["classes"])


def _class_counts(shard: Shard) -> npt.NDArray[np.float64]:
    """Own training nodes of every class, then all of them, `[C + 1]`."""
    labels, classes = (
        np.asarray(shard.labels)[np.asarray(shard.mask("train"))],
        shard.manifest["graph"]["classes"],
    )
    counts = labels.sum(axis=0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)
    return np.append(counts, len(labels)).astype(np.float64)


def hide_labels(
    config: Config, nodes: torch.Tensor, group: Group, task: NodeTask, scored: NodeTask | None = None
) -> HiddenLabels:
    """Where labels are input: the task of the training nodes that do not show theirs in an epoch.

    `nodes [n_i]` are the ids of the own rows; `scored` is the task of the graph that scores are taken on.
    """
    rate, seed = config.training.label_rate, config.training.seed
    once = config.training.label_draw == "once"

    def shown(rows: torch.Tensor) -> torch.Tensor:
        return LabelDraw.at(group.clock.epoch, rate, seed, once=once).shown(nodes[rows])

    return HiddenLabels(task, rate, shown, scored)


def total_over(group: Group) -> Total:
    """A function that adds a vector up over the ranks of `group`; all of them must call it."""

    def total(mine: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        summed = torch.from_numpy(np.array(mine))
        group.all_reduce(summed, Entry("agreement"))
        result: npt.NDArray[np.float64] = summed.numpy()
        return result

    return total
