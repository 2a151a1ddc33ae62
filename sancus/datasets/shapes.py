"""The graphs of the papers, as statistics that the generator can follow at any scale.

Nodes, edges, features and classes are those of Table 4 of the SANCUS paper, except where a note says
otherwise. `edges` counts undirected edges, so that an adjacency stores twice as many entries. At scale
`s` nodes and edges are both multiplied by `s`: the mean degree stays.

Homophily is not in the papers. It is that of the public graphs, rounded, and 0.5 where several labels
a node leave it undefined; it names only a difficulty, not a fact to rely on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sancus.errors import UserError
from sancus.plugins import choices


@dataclass(frozen=True)
class Shape:
    """Statistics of one published graph."""

    nodes: int
    edges: int  # undirected
    features: int
    classes: int
    homophily: float
    split: tuple[float, float, float]  # shares of train, validation, test; the rest is unlabelled
    multilabel: bool = False
    words: int = 0  # nonzero features a node where features are wide and sparse, 0: dense


SHAPES: dict[str, Shape] = {
    # Table 4 prints 899,756 for Flickr, which are stored entries: GNNPipe Table 2 has the degree, 10.1.
    "flickr": Shape(89_250, 449_878, 500, 7, 0.32, (0.50, 0.25, 0.25)),
    "reddit": Shape(232_965, 11_606_919, 602, 41, 0.76, (0.66, 0.10, 0.24)),
    "amazon": Shape(1_598_960, 132_169_734, 200, 107, 0.50, (0.85, 0.05, 0.10), multilabel=True),
    # Split: ByteGNN Table 3 (196,615 / 39,323 / 2,213,091).
    "products": Shape(2_449_029, 61_859_140, 100, 47, 0.81, (0.0803, 0.0161, 0.9036)),
    # Table 4 prints 200 features; ByteGNN Table 3, SuperGCN Table 3 and OGB have 128. Split: ByteGNN Table 3.
    "papers100m": Shape(111_059_956, 1_615_685_872, 128, 172, 0.50, (0.01087, 0.00113, 0.00193)),
    # SuperGCN Table 3; split of OGB.
    "arxiv": Shape(169_343, 1_166_243, 128, 40, 0.66, (0.537, 0.176, 0.287)),
    # Sylvie's fourth graph; its statistics are in GraphSAINT Table 1.
    "yelp": Shape(716_847, 6_977_410, 300, 100, 0.50, (0.75, 0.10, 0.15), multilabel=True),
    # GNNPipe Table 2 (495.9K stored entries); bags of about 33 words.
    "physics": Shape(34_493, 247_962, 8_415, 5, 0.93, (0.60, 0.20, 0.20), words=33),
}


def shape_settings(text: str) -> dict[str, Any]:
    """`reddit` or `reddit@0.05` to settings of the generator (`Synthetic`)."""
    name, at, number = text.partition("@")
    if name not in SHAPES:
        names = choices(SHAPES, name)
        raise UserError(f"graph 'synthetic:{text}': {name!r} is neither key=value nor a shape among {names}")
    shape, scale = SHAPES[name], _scale(text, number) if at else 1.0
    train, val, test = shape.split
    return {
        "nodes": max(1, round(shape.nodes * scale)),
        "degree": 2 * shape.edges / shape.nodes,
        "features": shape.features,
        "classes": shape.classes,
        "homophily": shape.homophily,
        "multilabel": shape.multilabel,
        "words": shape.words,
        "train": train,
        "val": val,
        "test": test,
    }


def _scale(text: str, number: str) -> float:
    try:
        scale = float(number)
    except ValueError:
        scale = math.nan
    if not 0 < scale < math.inf:
        raise UserError(f"graph 'synthetic:{text}': scale {number!r} must be above 0, e.g. reddit@0.05")
    return scale
