"""Rows of features on the wire: rounded anew in every step, right on average."""

from __future__ import annotations

import torch

from sancus.codecs import CODECS
from sancus.comm.group import Group
from sancus.plugins import build
from sancus.store.features import FeatureStore, Places, Pull
from sancus.store.parcel import Coding, Step
from tests.helpers.threads import results, run_threads

ROWS, WIDTH = 6, 5


def pulled(codec: str, steps: int) -> torch.Tensor:
    """`[steps, rows, width]`: all rows of rank 1, as rank 0 sees them in each step."""
    features = torch.randn(2 * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    places = Places(torch.arange(2 * ROWS) // ROWS, torch.arange(2 * ROWS) % ROWS)

    def ask(group: Group) -> list[torch.Tensor]:
        own = features[places.owner == group.rank]
        store = FeatureStore(own, places, group, Coding(build("codec", CODECS, codec), 3, 9))
        seen = []
        for number in range(steps):
            nodes = torch.arange(ROWS, 2 * ROWS) if group.rank == 0 else torch.arange(0)
            pull = Pull(store, nodes, Step(number // 4, number % 4))
            pull.fetching.run()
            seen.append(pull.rows().to_dense())
        return seen

    return torch.stack(results(run_threads(2, ask))[0]) - features[ROWS:]


def test_pulled_rows_are_rounded_anew_in_every_step_and_right_on_average() -> None:
    errors = pulled("int2", 400)
    assert len({tuple(error.flatten().tolist()) for error in errors[:16]}) == 16, "all steps alike"
    spread = errors.std(dim=0) / len(errors) ** 0.5
    assert bool((errors.mean(dim=0).abs() <= 5 * spread + 1e-6).all())


def test_every_codec_of_the_table_carries_features() -> None:
    for codec in CODECS:
        errors = pulled(codec, 2)
        assert float(errors.abs().max()) < 4, codec
        assert codec != "fp32" or not errors.any()
