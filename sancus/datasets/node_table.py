"""From two tables, of edges and of nodes, to a graph: ids, labels and splits may be words.

| table | column | meaning |
|---|---|---|
| edges | `source`, `target` (or the first two) | ids of nodes |
| | `weight` | the edge counts so much; without it 1 |
| nodes | `id` | a number or a word a node; without it nodes are the row numbers, from 0 |
| | `label` | its class, a number or a word; blank for none |
| | `split` | `train`, `val`, `test` or blank; 0, 1, 2 or -1; without it the split is random |
| | any other | a feature, a number |

Case does not matter in names; `NAMES` has what else they may be called. `N` is the number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sancus.datasets.assemble import (
    Features,
    Masks,
    adjacency_of,
    class_labels,
    degree_features,
    dense_features,
    random_split,
    split_note,
)
from sancus.datasets.columns import Columns
from sancus.datasets.fields import Fields
from sancus.errors import UserError
from sancus.graphs.graph import Graph
from sancus.graphs.origin import Origin

Array = npt.NDArray[Any]
NAMES = {
    "source": ("source", "src", "from", "u", "source_id", "src_id", "node1", "head"),
    "target": ("target", "dst", "to", "v", "target_id", "dst_id", "node2", "tail"),
    "weight": ("weight", "weights", "w", "edge_weight"),
    "id": ("id", "node", "node_id", "nodeid", "name", "key"),
    "label": ("label", "labels", "class", "y", "category"),
    "split": ("split", "set", "fold", "part"),
}
TIMES = ("time", "timestamp", "ts", "date", "datetime", "created", "created_at", "updated_at")
KNOWN = frozenset(name for names in NAMES.values() for name in names) | frozenset(TIMES)
SPLIT_WORDS = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "test": 2,
    "": -1,
    "none": -1,
}
LATEST = 1e8  # a whole number beyond it, in every row, is a time


def graph_of_tables(
    edges: Columns,
    nodes: Columns,
    name: str,
    options: Mapping[str, Any],
    features: Features | None = None,
) -> Graph:
    """The graph of two tables; `features [N, F]` are in the order of the nodes, beside those of the table.

    `options` are those of a random split, `undirected`, `drop` (columns that are no features, joined by `+`)
    and `features=degree`.
    """
    notes: list[str] = []
    left = dict(nodes)
    for column in filter(None, str(options.get("drop", "")).split("+")):
        if column not in left:
            raise UserError(
                f"{name}: drop={column}: the nodes have no such column; they have {', '.join(nodes)}"
            )
        del left[column]
    ids = _take(left, "id")
    labels, split = _take(left, "label"), _take(left, "split")
    if labels is None:
        raise UserError(f"{name}: the nodes have no column label; they have {', '.join(nodes) or 'nothing'}")
    count = len(labels)
    place = _places(name, ids, count)
    ends, weights = _ends(name, edges, place, notes)
    fields = Fields(name, {})
    undirected = bool(options.get("undirected", False))
    adjacency = adjacency_of(fields, "edges", ends, count, weights, undirected=undirected, notes=notes)
    classes_of, words = _class_numbers(labels)
    checked, classes = class_labels(Fields(name, {"label": classes_of}), "label", count)
    if classes < 1:
        raise UserError(f"{name}: column label is blank for every node; a class is needed for some")
    masks = _masks(name, split, checked, options, notes)
    rows = features
    if rows is None and options.get("features") != "degree":
        rows = _features(name, left, notes)
    if rows is None:
        rows = degree_features(adjacency)
    if rows.shape[0] != count:
        raise UserError(
            f"{name}: {rows.shape[0]} rows of features for {count} nodes; one a node, in their order"
        )
    kept = None if ids is None else np.asarray(ids)
    facts: dict[str, Any] = {"classes": classes, "name": name, "origin": Origin(kept, words, tuple(notes))}
    return Graph(adjacency, rows, checked, *masks, **facts)


def _take(columns: Columns, role: str) -> Array | None:
    """The column of a role, which is then no feature."""
    for name in list(columns):
        if name.strip().lower() in NAMES[role]:
            return columns.pop(name)
    return None


def _places(what: str, ids: Array | None, count: int) -> dict[Any, int]:
    """The number of every node by its id."""
    if ids is None:
        return {number: number for number in range(count)}
    listed = ids.tolist()
    blank = next((row for row, one in enumerate(listed) if one == "" or one != one), None)
    if blank is not None:
        raise UserError(f"{what}: the id of node row {blank + 1} is blank; every node needs one")
    place = {one: row for row, one in enumerate(listed)}
    if len(place) != count:
        twice = next(one for row, one in enumerate(listed) if place[one] != row)
        raise UserError(f"{what}: the nodes have two rows with id {twice!r}; one row a node")
    return place


def _ends(
    what: str, edges: Columns, place: Mapping[Any, int], notes: list[str]
) -> tuple[Array, Array | None]:
    """Edges `[2, E]` as numbers of nodes, and weights `[E]`."""
    left = dict(edges)
    if len(left) < 2:
        raise UserError(
            f"{what}: edges need the columns source and target; they have {', '.join(left) or 'none'}"
        )
    source, target = _take(left, "source"), _take(left, "target")
    if source is None or target is None:
        source, target = list(edges.values())[:2]
        left = dict(list(edges.items())[2:])
    weights = _take(left, "weight")
    if weights is None and "column 3" in left and not _is_time("column 3", left["column 3"]):
        weights = left.pop("column 3")
    for column, values in left.items():
        why = ", it looks like a time" if _is_time(column, values) else ""
        notes.append(f"column {column!r} of the edges is not used{why}; a weight is called weight")
    if weights is not None and weights.dtype.kind not in "iufb":
        raise UserError(f"{what}: weights of edges are words ({weights[0]!r}); they must be numbers")
    if not len(source):
        raise UserError(f"{what}: there is no edge; is this the right file?")
    numbers = [_numbers(what, column, place) for column in (source, target)]
    return np.stack(numbers), weights


def _numbers(what: str, ends: Array, place: Mapping[Any, int]) -> npt.NDArray[np.int64]:
    """Numbers of the nodes that edges name."""
    listed = ends.tolist()
    kind = type(next(iter(place), 0))
    if listed and not isinstance(listed[0], kind):
        listed = [_as(one, kind) for one in listed]
    numbers = np.fromiter((place.get(one, -1) for one in listed), np.int64, len(listed))
    unknown = np.flatnonzero(numbers < 0)
    if unknown.size:
        one = listed[unknown[0]]
        hint = "; are nodes numbered from 1? give them an id column" if one == len(place) else ""
        raise UserError(
            f"{what}: edge {unknown[0] + 1} names node {one!r}, which the nodes do not have{hint}"
        )
    return numbers


def _as(one: Any, kind: type) -> Any:
    """An id as the other table has it: 7, 7.0 and '7' are the same node."""
    try:
        if kind is str:
            return str(int(one)) if isinstance(one, float) and one == int(one) else str(one)
        return kind(one)
    except (ValueError, OverflowError):
        return one


def _class_numbers(labels: Array) -> tuple[Array, tuple[str, ...]]:
    """Labels `[N]` as numbers from 0, blank ones as -1, and the words of the classes, sorted."""
    if labels.dtype.kind in "iufb":
        return labels, ()
    words = tuple(sorted({word for word in labels.tolist() if word}))
    number = {word: place for place, word in enumerate(words)} | {"": -1}
    return np.array([number[word] for word in labels.tolist()], np.int64), words


def _masks(
    what: str, split: Array | None, labels: Array, options: Mapping[str, Any], notes: list[str]
) -> Masks:
    """The three masks `[N]`: by the column, else random, which is said."""
    if split is None:
        notes.append(split_note(options))
        return random_split(labels, options, what)
    if split.dtype.kind in "iuf":
        numbers = np.where(np.isnan(split.astype(float)), -1, split).astype(np.int64)
        wrong = [str(one) for one in numbers.tolist() if not -1 <= one <= 2]
    else:
        listed = [word.lower() for word in split.tolist()]
        wrong = [word for word in listed if word not in SPLIT_WORDS]
        numbers = np.array([SPLIT_WORDS.get(word, -1) for word in listed])
    if wrong:
        raise UserError(
            f"{what}: column split holds {wrong[0]!r}; give train, val, test or blank (0, 1, 2, -1)"
        )
    lost = int(((numbers >= 0) & (labels < 0)).sum()) if labels.ndim == 1 else 0
    if lost:
        notes.append(f"{lost:,} nodes of the split have no label: they are in no split")
        numbers[labels < 0] = -1
    return numbers == 0, numbers == 1, numbers == 2


def _features(what: str, columns: Columns, notes: list[str]) -> Features:
    """All columns that are left, `[N, F]`; those that look like no feature are pointed out."""
    if not columns:
        raise UserError(f"{what}: no features; add columns of numbers, features.npy, or features=degree")
    for name, values in columns.items():
        if values.dtype.kind not in "iufb":
            word = next(filter(None, values.tolist()), "")
            raise UserError(
                f"{what}: column {name!r} holds words ({word!r}); make them numbers, or add drop={name}"
            )
        if np.isnan(values.astype(np.float64)).any():
            row = int(np.flatnonzero(np.isnan(values.astype(np.float64)))[0])
            raise UserError(
                f"{what}: column {name!r} is blank in row {row + 1}; fill it, or leave it out: drop={name}"
            )
        looks = "an id" if _is_id(name, values) else "a time" if _is_time(name, values) else ""
        if looks:
            notes.append(
                f"column {name!r} looks like {looks} and is a feature; leave it out with drop={name}"
            )
    stacked = np.stack([values.astype(np.float32) for values in columns.values()], axis=1)
    return dense_features(Fields(what, {"features": stacked}), "features")


def _is_id(name: str, values: Array) -> bool:
    """Whether a column numbers its rows, or is called an id."""
    if name.lower().endswith(("_id", " id")) or name == "index":
        return True
    return len(values) > 2 and values.dtype.kind in "iu" and bool(np.all(np.diff(values) == 1))


def _is_time(name: str, values: Array) -> bool:
    if name.lower() in TIMES:
        return True
    return values.dtype.kind in "iuf" and len(values) > 0 and bool(np.all(values > LATEST))
