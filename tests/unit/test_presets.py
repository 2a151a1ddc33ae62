"""Presets: levels, the forms as published, and what a run of before meant by a name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from sancus.cli.train import read_flags
from sancus.config.papers import PAPERS
from sancus.config.presets import PRESETS, preset_settings
from sancus.config.resolve import changed_on_resume, make_config
from sancus.config.settings import Config, FactorSettings
from sancus.errors import UserError
from sancus.runs.check import check
from sancus.sampling.settings import SamplingSettings
from sancus.training.pipeline_settings import PipelineSettings
from sancus.training.settings import TrainingSettings
from tests.helpers.checkpoints import write_settings

PUBLISHED = {"reuse_input": False, "order": "aggregate-kept"}
OF_PAPERS = [name for name in PRESETS if ("preset", name) in PAPERS]
SAVES = {"reuse_input": True, "order": "auto", "skip_input_gradient": True}


def test_levels() -> None:
    assert preset_settings("sancus-e:2")["staleness"] == "epoch-fixed:bound=2"
    assert preset_settings("sancus-e") == preset_settings("sancus-e:1")
    assert preset_settings("sancus-a:3")["staleness"] == "epoch-adaptive:bound=3"
    assert preset_settings("sancus-h:2")["staleness"] == "variation-gap:gap=0.02"
    assert preset_settings("skipg:1")["backward"] == "epoch-fixed:bound=1"
    assert preset_settings("digest:7")["staleness"] == "periodic:period=7"
    assert preset_settings("digest") == preset_settings("digest:10")


def test_sylvie_as_published() -> None:
    """One bit, zero point and scale in four bytes a row; Sylvie-A never synchronises, Sylvie-A ε_s does."""
    synchronous, never, often = (preset_settings(name) for name in ("sylvie-s", "sylvie-a", "sylvie-a:5"))
    assert {settings["codec"] for settings in (synchronous, never, often)} == {"int1:tail=short"}
    assert "staleness" not in synchronous and "backward" not in synchronous
    assert never["staleness"] == never["backward"] == "pipelined"
    assert often["staleness"] == often["backward"] == "pipelined:sync_every=5"
    assert all(settings["plan"] == "halo" for settings in (synchronous, never, often))


def test_supergcn_as_published() -> None:
    settings = preset_settings("supergcn")
    assert settings["codec"] == "int2:tail=short" and settings["plan"] == "auto"
    assert (settings["label_rate"], settings["label_draw"]) == (0.5, "once")


@pytest.mark.parametrize(
    "spec, rate",
    [
        ("bns", "0.1"),
        ("bns:0.1", "0.1"),
        ("bns:.25", "0.25"),
        ("bns:1", "1"),
        ("bns:1e-3", "0.001"),
        ("bns:0.1234567", "0.1234567"),
    ],
)
def test_bns_has_a_share_for_a_level(spec: str, rate: str) -> None:
    assert preset_settings(spec) == SAVES | {"plan": f"drawn:rate={rate}"}


@pytest.mark.parametrize("name", OF_PAPERS)
def test_each_paper_has_a_form_without_savings_of_ours(name: str) -> None:
    plain, paper = preset_settings(name), preset_settings(f"{name}:paper")
    assert (paper["reuse_input"], paper["order"]) in [(False, "aggregate-kept"), (False, "aggregate-first")]
    others = {key for key in plain if key not in PUBLISHED}
    assert {key: paper[key] for key in others} == {key: plain[key] for key in others}
    if PRESETS[name].level is not None:
        level = "0.5" if PRESETS[name].level.share else "2"
        both, one = preset_settings(f"{name}:{level}:paper"), preset_settings(f"{name}:{level}")
        assert both == one | {key: paper[key] for key in PUBLISHED}


def test_what_has_no_savings_is_its_own_form_as_published() -> None:
    for name in ("cagnet", "sancus-e:2", "sancus-a:1", "sancus-h:3", "skipg:2"):
        assert preset_settings(f"{name}:paper") == preset_settings(name)


def test_presets_of_batches() -> None:
    """DistDGL balances splits, SALIENT++ has a cache, Cluster-GCN and GraphSAINT take subgraphs."""
    batches = {name: preset_settings(name) for name in PRESETS if "batch_size" in preset_settings(name)}
    assert batches.keys() == {"distdgl", "salient++", "clustergcn", "graphsaint", "lean-batch"}
    assert batches["distdgl"]["partitioner"] == "metis:balance=rows+train+val+test"
    samplers = {name: make_config(preset=name).sampling.sampler for name in batches}
    kinds = [samplers[name] for name in ("clustergcn", "graphsaint", "lean-batch")]
    assert kinds == ["cluster", "saint", "labor"]
    caches = {name for name in batches if make_config(preset=name).sampling.feature_cache.startswith("vip")}
    assert caches == {"salient++", "lean-batch"}
    assert all(make_config(preset=name).schedule == "minibatch" for name in batches)
    with pytest.raises(UserError, match="--staleness never is for training on the full graph"):
        make_config(preset="distdgl", staleness="never")


@pytest.mark.parametrize("name", PRESETS)
def test_every_form_is_settings_that_exist(name: str) -> None:
    preset = PRESETS[name]
    levels = [] if preset.level is None else ["1"] if preset.level.share else ["1", "2", "3"]
    forms = [name, *(f"{name}:{level}" for level in levels)]
    forms += [f"{form}:paper" for form in forms if preset.paper is not None]
    names = {
        item.name
        for kind in (FactorSettings, TrainingSettings, PipelineSettings, SamplingSettings)
        for item in dataclasses.fields(kind)
    }
    for form in forms:
        assert preset_settings(form).keys() <= names
        assert make_config(preset=form).preset == form
        assert read_flags(["--preset", form])[1].preset == form


@pytest.mark.parametrize(
    "spec, words",
    [
        ("sylvia", r"preset 'sylvia' does not exist; choose from .*did you mean sylvie-"),
        ("sancus-e:4", "sancus-e has sancus-e:1 to sancus-e:3; :paper behind it is as the paper did it$"),
        (
            "sancus-e:0:paper",
            "preset 'sancus-e:0:paper' does not exist; sancus-e has sancus-e:1 to sancus-e:3",
        ),
        ("sylvie-a:0", "sylvie-a has sylvie-a, and sylvie-a:1 on, any whole number"),
        ("sylvie-a:two", "sylvie-a has sylvie-a, and sylvie-a:1 on, any whole number"),
        ("sylvie-a:paper:5", "sylvie-a has sylvie-a, and sylvie-a:1 on"),
        ("digest:1.5", "digest has digest:1 on, any whole number"),
        ("pipegcn:2", "pipegcn has pipegcn alone; :paper behind it"),
        ("pipegcn:papers", "pipegcn has pipegcn alone; :paper behind it"),
        ("pipegcn:", "pipegcn has pipegcn alone"),
        ("bns:0", "bns has bns:p, p above 0 and at most 1, as in bns:0.1"),
        ("bns:1.1", "bns has bns:p, p above 0 and at most 1"),
        ("bns:nan", "bns has bns:p"),
        ("bns:inf:paper", "bns has bns:p"),
        ("bns:0.1:0.2", "bns has bns:p"),
        ("bns:", "bns has bns:p"),
        ("lean:paper", "preset 'lean:paper' does not exist; lean is no paper's, but ours: lean alone$"),
        ("exact:1", "preset 'exact:1' does not exist; exact has exact alone$"),
    ],
)
def test_a_preset_that_does_not_exist_is_told_what_does(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refusal:
        Config(preset=spec)
    assert "\n" not in str(refusal.value)


def test_draws_and_histories_are_refused_before_anything_starts() -> None:
    config = make_config(preset="bns:0.5", staleness="pipelined")
    with pytest.raises(UserError, match=r"^--staleness pipelined: --plan drawn:rate=0\.5 sends other rows"):
        check("synthetic", config, launched=True)
    with pytest.raises(UserError, match=r"rate=2\.0 must be at least"):
        check("synthetic", make_config(plan="drawn:rate=2"), launched=True)
    check("synthetic", make_config(preset="bns:0.5:paper", codec="int4"), launched=True)


# Names that meant something else before


def record_of(preset: str, lacks: str, **flags: Any) -> dict[str, Any]:
    """What a run of the version before wrote down of itself."""
    record = {"data": "synthetic"} | make_config(preset=preset, **flags).to_dict()
    del record["training"][lacks]
    return record


OLD = {
    "sylvie-a": record_of(
        "sylvie-a",
        "label_draw",
        staleness="pipelined:sync_every=5",
        backward="pipelined:sync_every=5",
        codec="int1",
    ),
    "supergcn": record_of("supergcn", "label_draw", codec="int2", label_draw="epoch"),
}


@pytest.mark.parametrize("preset", OLD)
@pytest.mark.parametrize("way", ["--config", "--resume"])
def test_a_run_of_before_goes_on_as_it_was(preset: str, way: str, tmp_path: Path) -> None:
    """Its record holds all settings of its version; the preset it names does not fill in others of today."""
    record = OLD[preset]
    write_settings(tmp_path / "run", record)
    (tmp_path / "run.json").write_text(json.dumps({"config": record}))
    place = tmp_path / ("run.json" if way == "--config" else "run")
    _, config = read_flags([way, str(place)])
    assert changed_on_resume(record, config.to_dict()) == []
    assert config.preset == preset and config.training.label_draw == "epoch"
    assert dataclasses.asdict(config.factors) == record["factors"]


def test_a_file_of_a_few_settings_is_completed_by_the_preset_of_today(tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    place.write_text(json.dumps({"preset": "supergcn", "training": {"label_rate": 0.3}}))
    _, config = read_flags(["--config", str(place)])
    assert (config.training.label_rate, config.training.label_draw) == (0.3, "once")
    assert config.factors.codec == "int2:tail=short"
