"""Generated community graphs: heavy-tailed degrees, tunable homophily, weak features.

`synthetic` alone is the built-in graph; `synthetic:nodes=5000,seed=3` changes settings;
`synthetic:reddit@0.05` follows the statistics of a published graph (`shapes.py`), and further
settings may follow: `synthetic:reddit@0.05,seed=3`. The same settings give the same graph everywhere.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass

import numpy as np
import xxhash

from sancus import plugins
from sancus.datasets import READERS
from sancus.datasets.communities import Design, assign_communities, draw_adjacency
from sancus.datasets.content import draw_features, draw_labels, draw_split
from sancus.datasets.shapes import shape_settings
from sancus.errors import UserError
from sancus.graphs.graph import Graph

GENERATOR_VERSION = 1  # raise it with every change that alters a generated graph
FILL = 0.8  # the largest share of the possible edges that the generator may have to draw


@dataclass(frozen=True)
class Synthetic:
    """Settings of a generated graph; checked when made."""

    nodes: int = 10_000
    classes: int = 8
    degree: float = 16.0  # mean stored entries a row
    features: int = 64
    homophily: float = 0.5  # share of edges that join two nodes of one class
    signal: float = 1.2  # length of a class centroid in units of the noise of one feature
    communities: int = 0  # a multiple of classes; 0: of about 8 times degree nodes each
    locality: float = 0.7  # share of the edges within a class that stay in their community
    directed: bool = False
    multilabel: bool = False  # labels [N, C]: one to three a node
    words: int = 0  # nonzero features a node (sparse bags of words); 0: dense features
    train: float = 0.6  # shares of the nodes; nodes in no split are unlabelled
    val: float = 0.2
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_shares()
        self._check_room()
        if self.communities:
            self._check_communities()

    @property
    def community_count(self) -> int:
        """`communities`, or the number that was chosen for it: always a multiple of `classes`."""
        if self.communities:
            return self.communities
        size = max(100.0, 8 * self.degree)
        return self.classes * max(1, round(self.nodes / (size * self.classes)))

    @property
    def bytes(self) -> int:
        """Memory of the finished graph: adjacency (8 bytes an entry), features and labels."""
        width = 2 * self.words if self.words else self.features
        label = self.classes if self.multilabel else 8
        return int(self.nodes * (8 * self.degree + 4 * width + label))

    def text(self) -> str:
        """All settings in one line, equal for equal graphs."""
        return ",".join(f"{key}={value}" for key, value in asdict(self).items())

    def _check_counts(self) -> None:
        if self.classes < 2:
            raise _wrong("classes", self.classes, "at least 2")
        if self.nodes < max(3, self.classes):
            least = max(3, self.classes)
            raise _wrong("nodes", self.nodes, f"at least {least} with classes={self.classes}")
        if self.features < 1:
            raise _wrong("features", self.features, "at least 1")
        if not 0 <= self.words <= self.features:
            raise _wrong("words", self.words, f"from 0 to features={self.features}")
        if self.seed < 0:
            raise _wrong("seed", self.seed, "0 or more")
        if not 0 <= self.signal < math.inf:
            raise _wrong("signal", self.signal, "0 or more")

    def _check_shares(self) -> None:
        for name in ("homophily", "locality"):
            if not 0 <= getattr(self, name) <= 1:
                raise _wrong(name, getattr(self, name), "between 0 and 1")
        for name in ("train", "val", "test"):
            if not 0 < getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a share of the nodes, above 0 and below 1")
        if self.train + self.val + self.test > 1 + 1e-9:
            total = self.train + self.val + self.test
            raise UserError(f"graph 'synthetic': train + val + test is {total:g}; lower them to a sum of 1")

    def _check_room(self) -> None:
        if not 0 < self.degree < self.nodes:
            raise _wrong("degree", f"{self.degree:g}", f"above 0 and below nodes={self.nodes}")
        room = _room(self.nodes, self.classes)
        if self.degree * self.homophily > room * (1 + 1e-9):
            raise _wrong(
                "degree",
                f"{self.degree:g}",
                f"at most {room / self.homophily:g} with nodes={self.nodes}, classes={self.classes}, "
                f"homophily={self.homophily:g}; lower it or homophily, or take more nodes",
            )
        others = FILL * (self.nodes - self.nodes / self.classes)
        if self.degree * (1 - self.homophily) > others:
            limit = f"at most {others / (1 - self.homophily):g} with nodes={self.nodes}"
            raise _wrong("degree", f"{self.degree:g}", f"{limit}; lower it or take more nodes")

    def _check_communities(self) -> None:
        most = self.nodes - self.nodes % self.classes
        if not 0 < self.communities <= most or self.communities % self.classes:
            near = min(most, self.classes * max(1, round(self.communities / self.classes)))
            rule = f"a multiple of classes={self.classes} up to nodes={self.nodes}, e.g. {near}"
            raise _wrong("communities", self.communities, rule)


class SyntheticReader:
    """Community graphs from a seed, also in the shapes of published graphs."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.settings = parse_settings(text)

    def load(self) -> Graph:
        """Generate the graph, if this machine can hold it."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if self.settings.bytes > memory:
            raise UserError(
                f"graph 'synthetic:{self.text}' needs {self.settings.bytes / 1e9:.0f} GB, this machine has "
                f"{memory / 1e9:.0f} GB; take fewer nodes or a smaller scale"
            )
        return generate(self.settings, name=f"synthetic:{self.text}" if self.text else "synthetic")

    def fingerprint(self) -> str:
        """Hash of all settings and of the generator's version."""
        identity = f"{GENERATOR_VERSION}:{self.settings.text()}"
        return f"synthetic-{xxhash.xxh3_128_hexdigest(identity.encode())}"


def parse_settings(text: str) -> Synthetic:
    """What follows `synthetic:` (a shape, then key=value pairs, each optional) to settings."""
    first, _, rest = text.partition(",")
    shaped = bool(first) and "=" not in first
    base = shape_settings(first.strip()) if shaped else {}
    pairs = plugins.parse("graph", READERS, f"synthetic:{rest if shaped else text}").settings
    spec = plugins.Spec("synthetic", f"{__name__}:Synthetic", pairs)
    overrides = plugins.settings_of("graph", spec)
    if shaped and "homophily" not in overrides:
        base["homophily"] = _fitting_homophily({**base, **overrides})
    return Synthetic(**{**base, **overrides})


def generate(settings: Synthetic, name: str = "synthetic") -> Graph:
    """The graph of some settings; every aspect has its own random stream."""
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(settings.seed).spawn(5)]
    community_rng, edge_rng, label_rng, feature_rng, split_rng = streams
    design = Design(
        nodes=settings.nodes,
        classes=settings.classes,
        communities=settings.community_count,
        edges=round(settings.nodes * settings.degree / (1 if settings.directed else 2)),
        homophily=settings.homophily,
        locality=settings.locality,
        directed=settings.directed,
    )
    layout = assign_communities(design, community_rng)
    adjacency = draw_adjacency(design, layout, edge_rng)
    topics, labels = draw_labels(layout.community, design, settings.multilabel, label_rng)
    features = draw_features(
        topics, settings.classes, settings.features, settings.words, settings.signal, feature_rng
    )
    masks = draw_split(settings.nodes, (settings.train, settings.val, settings.test), split_rng)
    if not settings.multilabel:
        labels[~(masks[0] | masks[1] | masks[2])] = -1
    return Graph(adjacency, features, labels, *masks, classes=settings.classes, name=name)


def _fitting_homophily(settings: dict[str, float]) -> float:
    """A shape's homophily, lowered where a small scale leaves its classes too few nodes for it."""
    room = _room(settings["nodes"], settings["classes"])
    return min(settings["homophily"], room / settings["degree"]) if settings["degree"] > 0 else 0.0


def _room(nodes: float, classes: float) -> float:
    """The mean degree within a class that still fits into classes of `nodes / classes` nodes."""
    return FILL * max(0.0, nodes / max(1, classes) - 1)


def _wrong(key: str, value: object, rule: str) -> UserError:
    return UserError(f"graph 'synthetic': {key}={value} must be {rule}")
