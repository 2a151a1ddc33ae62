"""Labels, features and splits of generated graphs; a node's own features say little about its label.

Arithmetic is elementwise throughout (no matrix product), so that features are equal on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from sancus.datasets.communities import Design, Ints
from sancus.datasets.spool import spool

Mask = npt.NDArray[np.bool_]

ROWS = 1 << 16  # rows of features that are worked on at a time
SPOOL_FROM = 1 << 28  # bytes of features from which they are kept on disk
EXTRA_LABELS = 2  # further labels of a community where nodes have several
EXTRA_SHARE = 0.7  # of its nodes that take each of them


def draw_labels(
    community: Ints, design: Design, multilabel: bool, rng: np.random.Generator
) -> tuple[Ints, npt.NDArray[np.int64] | Mask]:
    """Topics `[N, T]` (classes that shape a node's features, -1: none) and its labels `[N]` or `[N, C]`.

    The first topic is the class of the node's community. With several labels a node, a community has two
    more, and each of its nodes takes each of them with probability 0.7.
    """
    main = community % design.classes
    if not multilabel:
        return main[:, None], main.copy()
    extra = rng.integers(0, design.classes, (design.communities, EXTRA_LABELS))[community]
    extra[rng.random(extra.shape) >= EXTRA_SHARE] = -1
    topics = np.column_stack([main, extra])
    labels = np.zeros((len(main), design.classes), np.bool_)
    for column in topics.T:
        members = np.flatnonzero(column >= 0)
        labels[members, column[members]] = True
    return topics, labels


def draw_features(
    topics: Ints, classes: int, width: int, words: int, signal: float, rng: np.random.Generator
) -> npt.NDArray[np.float32] | sp.csr_array:
    """Features `[N, F]`: noisy class centroids, or sparse bags of words where `words` is not 0."""
    if words:
        return _bags(topics, classes, width, words, signal, rng)
    signs = rng.integers(0, 2, (classes, width)).astype(np.float32) * 2 - 1
    centroids = np.zeros((classes + 1, width), np.float32)  # the last row is topic -1: nothing
    centroids[:classes] = signs * np.float32(signal / np.sqrt(width))
    pieces = _noisy(topics, centroids, rng)
    if len(topics) * width * 4 < SPOOL_FROM:
        return np.concatenate(list(pieces))
    return spool(pieces, "generated features")


def _noisy(
    topics: Ints, centroids: npt.NDArray[np.float32], rng: np.random.Generator
) -> Iterator[npt.NDArray[np.float32]]:
    """Dense features in pieces `[ROWS, F]`; the values do not depend on the size of a piece."""
    for first in range(0, len(topics), ROWS):
        rows = topics[first : first + ROWS]
        features = rng.standard_normal((len(rows), centroids.shape[1]), np.float32)
        for column in rows.T:
            features += centroids[column]
        yield features


def _bags(
    topics: Ints, classes: int, width: int, words: int, signal: float, rng: np.random.Generator
) -> sp.csr_array:
    """Binary bags of at most `words` words.

    A share `signal / (signal + 10)` of the words comes from the vocabulary of the node's first topic,
    which is every `C`-th word; the others come from all words, low numbers more often.
    """
    nodes = len(topics)
    common = (rng.random((nodes, words)) ** 2 * width).astype(np.int64)
    vocabulary = max(1, width // classes)
    own = topics[:, :1] + classes * rng.integers(0, vocabulary, (nodes, words))
    topical = rng.random((nodes, words)) < signal / (signal + 10)
    indices = np.where(topical, own % width, common).ravel()
    indptr = np.arange(nodes + 1) * words
    bags = sp.csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(nodes, width))
    bags.sum_duplicates()
    bags.data[:] = 1.0
    return bags


def draw_split(
    nodes: int, shares: tuple[float, float, float], rng: np.random.Generator
) -> tuple[Mask, Mask, Mask]:
    """Random, disjoint train, validation and test masks `[N]`, none of them empty."""
    order = rng.permutation(nodes)
    val = min(nodes - 2, max(1, int(nodes * shares[1])))
    test = min(nodes - 1 - val, max(1, int(nodes * shares[2])))
    rest = nodes - val - test
    train = rest if sum(shares) > 1 - 1e-9 else min(rest, max(1, int(nodes * shares[0])))
    masks = np.zeros((3, nodes), np.bool_)
    for mask, part in zip(masks, np.split(order, np.cumsum([train, val, test])), strict=False):
        mask[part] = True
    return masks[0], masks[1], masks[2]
