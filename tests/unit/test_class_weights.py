"""Class weights: `balanced` weighs a class by `N / (C n_c)`, so that all training nodes together weigh N."""

from __future__ import annotations

import torch

from sancus.training.node_task import class_weights
from sancus.training.settings import TrainingSettings

BALANCED = TrainingSettings(class_weights="balanced")


def test_one_label_a_node() -> None:
    counts = torch.tensor([6.0, 2.0, 0.0, 8.0])  # of three classes, and of all nodes
    weights = class_weights(BALANCED, counts, multilabel=False)
    assert weights is not None
    assert weights.tolist() == [8 / (3 * 6), 8 / (3 * 2), 1.0]


def test_several_labels_a_node() -> None:
    counts = torch.tensor([6.0, 2.0, 0.0, 8.0])
    weights = class_weights(BALANCED, counts, multilabel=True)
    assert weights is not None
    assert weights.tolist() == [(8 - 6) / 6, (8 - 2) / 2, 1.0]
