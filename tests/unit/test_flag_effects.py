"""Every flag of `sancus train` that alters training has its effect: one that is ignored fails here.

Each flag is set to another value in a setting where it matters, and the run is compared with the same run
without it. An `Effect` says what must differ, and what must not: exact savings change bytes, but losses only
under staleness, a lossy codec, or dropout of dense features.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sancus.comm.group import Group
from sancus.config.resolve import make_config
from sancus.config.settings import FactorSettings, LaunchSettings, OutputSettings
from sancus.graphs.graph import Graph
from sancus.models.settings import ModelSettings
from sancus.sampling.settings import SamplingSettings
from sancus.training.async_settings import AsyncSettings
from sancus.training.link_settings import LinkSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.graphs import awkward_graph, shards_of
from tests.helpers.threads import open_own, results, run_threads, thread_trainer

RANKS = 2
BASE: dict[str, Any] = {
    "epochs": 4,
    "hidden": 4,
    "dropout": 0.0,
    "plan": "halo",
    "kernel": "torch",
    "broadcast": "library",
    "dtype": "float64",
}
GAT = {"model": "gat", "heads": 2}
LINK = {"task": "link"}
SKIPS = {"staleness": "variation-gap:gap=0.05"}


@dataclass(frozen=True)
class Effect:
    """A value of a flag, what must change, what must not, and the setting around it."""

    value: Any
    changes: tuple[str, ...] = ("losses",)
    same: tuple[str, ...] = ()
    around: tuple[tuple[str, Any], ...] = ()
    multilabel: bool = False


def effect(
    value: Any, *changes: str, same: tuple[str, ...] = (), multilabel: bool = False, **around: Any
) -> Effect:
    return Effect(value, changes or ("losses",), same, tuple(around.items()), multilabel)


EFFECTS: dict[str, list[Effect]] = {
    "model": [effect("sage"), effect("gin"), effect("gcnii"), effect("resgcn+"), effect("gatv2", **GAT)],
    "preset": [effect("sancus-e:1", "decisions", "losses")],
    # factors
    "plan": [
        effect("block", "wire", same=("rounded",)),
        effect("prepost", "wire", same=("rounded",)),
    ],
    "staleness": [effect("epoch-fixed:bound=1", "losses", "decisions", "wire", "saved")],
    "backward": [effect("never", "losses", "decisions", "wire", "saved")],
    "codec": [effect("int4", "losses", "wire", same=("raw", "decisions"))],
    "backward_codec": [effect("int4", "losses", "wire", same=("raw", "decisions"))],
    "error_feedback": [effect(True, "losses", same=("wire",), codec="int2")],
    "agree": [effect("epoch", "agreement", **SKIPS)],
    "clip": [
        effect(1e-3, "losses", same=("wire",)),
        effect(1e-3, "losses", **GAT),
        effect(1e-3, "losses", plan="block", **GAT),
    ],
    "reuse_input": [
        effect(False, "wire", same=("rounded",)),
        effect(False, "wire", same=("rounded",), **GAT),
        effect(False, "losses", dropout=0.5),
        effect(False, "losses", staleness="epoch-fixed:bound=1", order="aggregate-first", codec="int8"),
    ],
    "order": [
        effect("transform-first", "wire", same=("rounded",), reuse_input=False, hidden=12),
        effect("aggregate-first", "wire", same=("rounded",), reuse_input=False),
        effect("aggregate-kept", "wire", same=("rounded",), reuse_input=False),
        effect("aggregate-first", "losses", staleness="epoch-fixed:bound=1"),
        effect("aggregate-first", "losses", codec="int8"),
    ],
    "skip_input_gradient": [effect(False, "wire", same=("rounded",), reuse_input=False)],
    # model
    "layers": [effect(3, "losses", "wire")],
    "hidden": [effect(6)],
    "dropout": [effect(0.5, same=("wire",)), effect(0.5, **GAT), effect(0.5, model="gcnii")],
    "norm": [effect("layer"), effect("batch", "losses", "parameter"), effect("none", model="resgcn+")],
    "residual": [effect(True, layers=3), effect(True, model="gcnii")],
    "jumping": [effect("cat"), effect("max")],
    "heads": [effect(1, "losses", same=("wire",), **GAT)],
    "output_heads": [effect(2, "losses", "wire", **GAT)],
    "attention_dropout": [effect(0.5, **GAT)],
    "gcnii_alpha": [effect(0.5, model="gcnii")],
    "gcnii_lambda": [effect(2.0, model="gcnii")],
    "edge_weights": [effect(False), effect(False, model="sage"), effect(False, model="gin", hidden=16)],
    # training
    "epochs": [effect(6, "count"), effect(8, "later", lr_schedule="linear")],
    "optimizer": [effect("sgd", "later")],
    "lr": [effect(0.1, "later")],
    "momentum": [effect(0.9, "later", optimizer="sgd")],
    "weight_decay": [effect(0.5, "later")],
    "layer_weight_decay": [effect(0.5, "later", model="gcnii")],
    "class_weights": [effect("balanced"), effect("1,0.5,2"), effect("balanced", multilabel=True)],
    "label_smoothing": [effect(0.3), effect(0.3, multilabel=True)],
    "metric": [
        effect("roc-auc", "scores", same=("losses",), multilabel=True),
        effect("mrr", "scores", same=("losses",), **LINK),
    ],
    "normalise_features": [effect(True)],
    "inductive": [effect(True)],
    "lr_schedule": [effect("cosine", "later"), effect("linear", "later")],
    "parameters": [
        effect("average", "later", same=("wire", "parameter")),
        effect("average", "later", check=1),
    ],
    "parameter_codec": [
        effect("int4", "later", "parameter", same=("wire", "raw_parameter")),
        effect("low-rank:rank=1", "later", "parameter", same=("wire", "raw_parameter"), hidden=12),
    ],
    "warmup": [effect(2, "later")],
    "patience": [effect(1, "count", same=("first",), epochs=40, lr=1e-7)],
    "eval_every": [effect(2, "evaluation", "scores", same=("losses", "wire"))],
    "check": [effect(1, "checksums", same=("losses", "wire", "agreement"))],
    "label_rate": [effect(0.5)],
    "label_draw": [effect("once", "later", same=("wire",), label_rate=0.5)],
    "dtype": [effect("float32", "losses", "wire")],
    "seed": [effect(1)],
    # links
    "task": [effect("link", "losses", "scores", "wire")],
    "held_out": [effect(0.2, **LINK)],
    "negatives": [effect(3, **LINK)],
    "rivals": [effect(5, "scores", same=("losses",), **LINK)],
    "leave_out": [effect(False, batch_size=9, fanout="2", **LINK)],
    # mini-batches
    "batch_size": [effect(4, "losses", "wire", "parameter"), effect(8, "losses")],
    "fanout": [effect("2", batch_size=4), effect("3,all", batch_size=4)],
    "sampler": [
        effect("labor", batch_size=4, fanout="2"),
        effect("neighbour:by=weight", batch_size=4, fanout="2"),
        effect("cluster:parts=6", batch_size=4, fanout="all"),
        effect("saint", batch_size=4, fanout="all"),
    ],
    "topology": [effect("owner", "topology", same=("losses", "wire"), batch_size=4, fanout="2")],
    "feature_codec": [effect("int4", "losses", "wire", same=("raw",), batch_size=4, fanout="2")],
    "feature_cache": [
        effect("vip:share=0.5", "wire", same=("losses",), batch_size=4, fanout="2"),
        effect("degree:share=0.2", "wire", same=("losses",), batch_size=4, fanout="2"),
    ],
}
SECTIONS = (
    FactorSettings,
    ModelSettings,
    TrainingSettings,
    SamplingSettings,
    LinkSettings,
    AsyncSettings,
    LaunchSettings,
    OutputSettings,
)
ELSEWHERE = {
    "partitioner": "shards: test_graphs_partition, test_api",
    "row_order": "shards: test_graphs_order, test_api",
    "backend": "the transport: test_transport, test_launchers",
    "broadcast": "changes no number: test_broadcast",
    "prefetch": "changes no number: test_minibatch",
    "kernel": "changes no number: test_kernels",
    "schedule": "chosen by other flags: test_minibatch, test_schedules",
    **{item.name: "ranks that wait for nobody: test_async" for item in fields(AsyncSettings)},
    **{item.name: "launching: test_launchers" for item in fields(LaunchSettings)},
    **{item.name: "files of a run: test_cli" for item in fields(OutputSettings)},
}


def weighted(graph: Graph) -> Graph:
    """Features of rows whose sums differ, all above 0."""
    features = np.abs(np.asarray(graph.features))
    return Graph(
        graph.adjacency,
        features.astype(np.float32),
        graph.labels,
        graph.train_mask,
        graph.val_mask,
        graph.test_mask,
        graph.classes,
        graph.name,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    return {
        several: shards_of(
            weighted(awkward_graph(weighted=True, multilabel=several)),
            "random",
            RANKS,
            tmp_path_factory.mktemp("shards"),
        )
        for several in (False, True)
    }


def observe(folder: Path, flags: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """What a run did, in words that effects are told in."""
    key = f"{folder} {sorted(flags.items(), key=str)}"
    if key not in seen:
        config = make_config(**flags)

        def run(group: Group) -> tuple[list[Any], Any, list[Any]]:
            trainer = thread_trainer(config, open_own(folder, group), group)
            places: list[Any] = []
            reach = trainer._consensus.reach

            def reached(statement: Any) -> Any:
                places.append(statement.place[-1])
                return reach(statement)

            trainer._consensus.reach = reached  # type: ignore[method-assign]
            records = list(trainer.epochs())
            return records, trainer.exchange.crossing.decisions.as_array(), places

        records, decisions, checksums = results(run_threads(RANKS, run))[0]
        column = {name: [record[name] for record in records] for name in records[0]}
        seen[key] = {
            "losses": column["loss"],
            "rounded": [round(float(loss), 8) for loss in column["loss"]],
            "first": column["loss"][:2],
            "later": column["loss"][1:4],
            "count": len(records),
            "scores": [column[split] for split in ("train", "val", "test")],
            "wire": column["wire_bytes"],
            "raw": column["raw_bytes"],
            "saved": column["saved_bytes"],
            "agreement": column["agreement_bytes"],
            "topology": column["topology_bytes"],
            "parameter": column["parameter_bytes"],
            "raw_parameter": column["raw_parameter_bytes"],
            "evaluation": column["evaluation_bytes"],
            "decisions": decisions.tolist(),
            "checksums": [bool(number) for number in checksums],
        }
    found: dict[str, Any] = seen[key]
    return found


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """Runs that were made already."""
    return {}


CASES = [
    pytest.param(name, case, id=f"{name}-{case.value}-{'-'.join(str(v) for _, v in case.around)}")
    for name, cases in EFFECTS.items()
    for case in cases
]


@pytest.mark.parametrize("name, case", CASES)
def test_a_flag_has_its_effect(
    folders: dict[bool, Path], seen: dict[str, Any], name: str, case: Effect
) -> None:
    around = BASE | dict(case.around)
    if name == "preset":
        around = {key: value for key, value in around.items() if key != "plan"}
    folder = folders[case.multilabel]
    without = observe(folder, around, seen)
    with_flag = observe(folder, around | {name: case.value}, seen)
    for what in case.changes:
        assert with_flag[what] != without[what], f"--{name} {case.value} does not change its {what}"
    for what in case.same:
        assert with_flag[what] == without[what], f"--{name} {case.value} must not change its {what}"


def test_every_flag_is_here_or_told_where() -> None:
    flags = {item.name for section in SECTIONS for item in fields(section)} | {"model", "preset"}
    unknown = flags - EFFECTS.keys() - ELSEWHERE.keys()
    assert not unknown, f"add an effect of {', '.join(sorted(unknown))} to EFFECTS"
    gone = EFFECTS.keys() - flags
    assert not gone, f"{', '.join(sorted(gone))} are no flags any more"


def test_defaults_are_not_in_the_table() -> None:
    """A value that is the default would compare a run with itself."""
    defaults = {
        item.name: item.default
        for section in (FactorSettings, ModelSettings, TrainingSettings, SamplingSettings)
        for item in fields(section)
    }
    for name, cases in EFFECTS.items():
        for case in cases:
            assert (BASE | dict(case.around)).get(name, defaults.get(name)) != case.value, name
    assert torch.get_default_dtype() == torch.float32, "no run may change what others see"
