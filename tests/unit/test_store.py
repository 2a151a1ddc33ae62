"""What every store must promise, by example and by random use against a plain dictionary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sancus.comm.ledger import DIRECTIONS, Stream
from sancus.exchange.history import History
from sancus.exchange.store import LocalStore, Store

STORES: dict[str, Callable[[], Store]] = {"local": LocalStore}
WIDTH = 2
every_store = pytest.mark.parametrize("make", STORES.values(), ids=STORES)

streams = st.builds(Stream, st.integers(0, 2), st.sampled_from(DIRECTIONS), st.integers(0, 2))
pushes = st.tuples(streams, st.integers(0, 4), st.integers(-5, 5))  # stream, rows, version
ids = st.lists(st.integers(0, 12), unique=True, max_size=6)
row_pushes = st.tuples(st.integers(0, 1), ids, st.integers(-5, 5))  # layer, ids, version


def numbered(count: int, number: int) -> torch.Tensor:
    return torch.arange(count * WIDTH).view(count, WIDTH).double() + 100.0 * number


@every_store
@given(calls=st.lists(pushes, max_size=12))
def test_streams_hold_what_was_pushed_last(
    make: Callable[[], Store], calls: list[tuple[Stream, int, int]]
) -> None:
    store, expected = make(), dict[Stream, tuple[torch.Tensor, int]]()
    for number, (stream, count, version) in enumerate(calls):
        payload = numbered(count, number)
        store.push(stream, payload, version)
        expected[stream] = payload.clone(), version
        payload.fill_(float("nan"))  # a buffer that is used again must not show
    assert store.streams() == list(expected)
    for stream, (payload, version) in expected.items():
        assert store.holds(stream) and store.version(stream) == version
        assert torch.equal(store.pull(stream), payload)
    assert store.nbytes == sum(payload.nbytes for payload, _ in expected.values())
    other = Stream(9, "forward", 0)
    assert not store.holds(other)
    for ask in (store.pull, store.version):
        with pytest.raises(KeyError):
            ask(other)


@every_store
@given(calls=st.lists(row_pushes, max_size=10), wanted=ids)
def test_rows_hold_what_was_pushed_last_each_with_its_version(
    make: Callable[[], Store], calls: list[tuple[int, list[int], int]], wanted: list[int]
) -> None:
    store, expected = make(), dict[tuple[int, int], tuple[list[float], int]]()
    for number, (layer, nodes, version) in enumerate(calls):
        rows, keys = numbered(len(nodes), number), torch.tensor(nodes, dtype=torch.int64)
        store.push_rows(layer, keys, rows, version)
        expected |= {(layer, node): (rows[k].tolist(), version) for k, node in enumerate(nodes)}
        rows.fill_(float("nan"))
        keys.fill_(-1)
    for layer in {layer for layer, _, _ in calls}:
        held = [node for node in wanted if (layer, node) in expected]
        assert store.holds_rows(layer, torch.tensor(wanted, dtype=torch.int64)).tolist() == [
            node in held for node in wanted
        ]
        rows, versions = store.pull_rows(layer, torch.tensor(held, dtype=torch.int64))
        assert rows.tolist() == [expected[layer, node][0] for node in held]
        assert versions.tolist() == [expected[layer, node][1] for node in held]
        rows.fill_(float("nan"))  # what came out is a copy
        again, _ = store.pull_rows(layer, torch.tensor(held, dtype=torch.int64))
        assert not again.isnan().any()
        missing = [node for node in range(13) if (layer, node) not in expected]
        if missing:
            with pytest.raises(KeyError):
                store.pull_rows(layer, torch.tensor([missing[0], *held]))
    assert not store.holds_rows(7, torch.arange(3)).any()
    with pytest.raises(KeyError):
        store.pull_rows(7, torch.arange(1))


@every_store
def test_streams_and_rows_are_apart_and_both_are_counted(make: Callable[[], Store]) -> None:
    store = make()
    store.push(Stream(0, "forward", 1), numbered(3, 0), 4)
    before = store.nbytes
    store.push_rows(0, torch.tensor([5, 1]), numbered(2, 1), 8)
    assert store.version(Stream(0, "forward", 1)) == 4 and store.streams() == [Stream(0, "forward", 1)]
    assert store.nbytes >= before + numbered(2, 1).nbytes
    with pytest.raises(ValueError, match="layer 0: a node is pushed twice at once"):
        store.push_rows(0, torch.tensor([3, 3]), numbered(2, 2), 9)


@every_store
def test_a_payload_of_the_same_shape_takes_the_same_memory(make: Callable[[], Store]) -> None:
    store, stream = make(), Stream(0, "backward", 1)
    store.push(stream, numbered(3, 0), 0)
    place = store.pull(stream).data_ptr()
    store.push(stream, numbered(3, 1), 1)
    assert store.pull(stream).data_ptr() == place
    assert not store.pull(stream).requires_grad
    store.push(stream, numbered(5, 2).requires_grad_(), 2)
    assert store.pull(stream).shape == (5, WIDTH) and not store.pull(stream).requires_grad


def test_a_history_is_a_view_of_its_store() -> None:
    store = LocalStore()
    history = History(store)
    history.push(Stream(0, "forward", 1), numbered(3, 0), 4)
    assert store.version(Stream(0, "forward", 1)) == history.version(Stream(0, "forward", 1)) == 4
    assert store.pull(Stream(0, "forward", 1)) is history.pull(Stream(0, "forward", 1))
    assert history.nbytes == store.nbytes == numbered(3, 0).nbytes
    assert History().streams() == [] and not History().holds(Stream(0, "forward", 1))
