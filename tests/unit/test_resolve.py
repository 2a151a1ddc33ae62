"""From flags, files, presets and keywords to one `Config`; what settings mean to ranks and later runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sancus.cli.train import read_flags
from sancus.config.kinds import KINDS, Kind, check_specs, specs_of, try_spec
from sancus.config.resolve import (
    RENAMED,
    Layer,
    changed_on_resume,
    make_config,
    missing_settings,
    modern,
    modern_arguments,
    repeatable,
)
from sancus.config.settings import Config, FactorSettings, LaunchSettings, OutputSettings, fields_by_flag
from sancus.errors import UserError
from sancus.launch.world import RUN
from sancus.plugins import choices, summary
from sancus.training import SCHEDULES
from sancus.training.settings import TrainingSettings
from tests.helpers.checkpoints import write_settings

# Written out, so that a change of a field's metadata is a decision: what a resumed run may set anew …
MAY_CHANGE = {
    *("backend", "broadcast", "kernel", "ranks", "threads", "timeout", "restarts", "preset"),
    *("out", "overwrite", "checkpoint_every", "keep", "resume", "verbose", "quiet", "track"),
    *("epochs", "patience", "eval_every", "lr", "stages", "seconds", "max_delay"),
    *("recompute", "recompute_first", "balance"),
}
# … where ranks may differ, and what belongs to one start of a run.
OF_A_RANK = {*("ranks", "threads", "timeout", "restarts"), *("out", "overwrite", "keep", "verbose", "quiet")}
OF_A_RANK |= {"track"}
ONCE = {"out", "overwrite", "resume", "quiet", "restarts"}


def test_what_metadata_say_of_every_setting() -> None:
    fields = fields_by_flag()
    assert {name for name, item in fields.items() if item.metadata.get("may_change")} == MAY_CHANGE
    rules = {name: item.metadata.get("agree", True) for name, item in fields.items()}
    assert {name for name, rule in rules.items() if rule is False} == OF_A_RANK
    assert {name for name, rule in rules.items() if rule == "presence"} == {"resume"}
    assert {name for name, item in fields.items() if not item.metadata.get("repeat", True)} == ONCE


def test_the_digest_looks_at_what_must_agree(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    base = Config()
    same = [
        Config(launch=LaunchSettings(ranks=3, threads=2, timeout=5.0)),
        Config(output=OutputSettings(out=tmp_path, keep=5, verbose=True, track="tensorboard")),
    ]
    assert {config.digest() for config in same} == {base.digest()}
    other = [
        Config(output=OutputSettings(checkpoint_every=3)),
        Config(output=OutputSettings(resume=tmp_path)),
        Config(factors=FactorSettings(kernel="torch")),
        Config(training=TrainingSettings(lr_schedule="cosine")),
        Config(launch=LaunchSettings(device="cuda")),
    ]
    digests = {config.digest() for config in (base, *other)}
    assert len(digests) == len(other) + 1
    resumed = OutputSettings(resume=Path("auto"), out=tmp_path)
    assert Config(output=resumed).digest() == other[1].digest(), "which run is resumed is rank 0's affair"


def test_layers_come_in_order() -> None:
    earlier = [Layer("file", {"preset": "sancus-e:1", "hidden": 3})]
    typed = list(missing_settings({"preset": "cagnet"}, earlier, "lean"))
    assert [layer.source for layer in typed] == ["--preset cagnet", "file"]
    unnamed = list(missing_settings({}, earlier, "lean"))
    assert [layer.source for layer in unnamed] == ["file", "preset sancus-e:1"]
    nothing = list(missing_settings({}, [], "lean"))
    assert [layer.source for layer in nothing] == ["the default", "preset lean"]
    assert nothing[0].values == {"preset": "lean"}


def test_the_default_preset_of_python_and_of_the_command_line() -> None:
    assert make_config() == Config() and make_config().preset == "exact"
    _, config = read_flags([])
    assert config.preset == "lean" and config.factors.codec == "int4:tail=short"


def test_python_keywords_beat_the_preset_beat_the_config() -> None:
    base = make_config(preset="cagnet", hidden=7, plan="halo")
    assert (base.factors.plan, base.factors.reuse_input, base.shape.hidden) == ("halo", False, 7)
    again = make_config(base, epochs=3)
    assert (again.factors, again.shape, again.training.epochs) == (base.factors, base.shape, 3)
    other = make_config(base, preset="exact")
    assert (other.factors.reuse_input, other.factors.plan, other.shape.hidden) == (True, "auto", 7)
    mapped = make_config({"preset": "cagnet", "plan": "halo"}, hidden=9)
    assert (mapped.factors.plan, mapped.factors.reuse_input, mapped.shape.hidden) == ("halo", False, 9)
    with pytest.raises(UserError, match=r"setting 'hiden' does not exist; choose from .*did you mean hidden"):
        make_config(hiden=3)
    assert make_config(out="x").output.out == Path("x")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"epochs": "5"}, "epochs='5' is a str; it must be a whole number"),
        ({"epochs": True}, "epochs=True is a bool; it must be a whole number"),
        ({"ranks": 2.5}, "ranks=2.5 is a float; it must be a whole number"),
        ({"lr": "0.1"}, "lr='0.1' is a str; it must be a number"),
        ({"codec": 4}, "codec=4 is a int; it must be a text"),
        ({"reuse_input": 1}, "reuse_input=1 is a int; it must be True or False"),
        ({"optimizer": "adm"}, "optimizer='adm' is not one of adam, sgd (did you mean adam?)"),
        ({"out": ""}, "out='' names nothing; give a directory, '.' for the current one"),
        ({"out": 3}, "out=3 is a int; it must be a path"),
        ({"config": [1]}, "config is a list; give a dictionary, or what sancus.settings gave"),
    ],
)
def test_wrong_types_from_python(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        make_config(**wrong)
    assert str(caught.value) == said


def test_numbers_of_numpy_are_numbers() -> None:
    config = make_config(epochs=np.int64(3), lr=np.float32(0.5), weight_decay=0, dtype="float64")
    assert (config.training.epochs, config.training.lr, config.training.weight_decay) == (3, 0.5, 0.0)
    assert type(config.training.epochs) is int and type(config.training.weight_decay) is float


def test_what_a_new_run_takes_over() -> None:
    settings: dict[str, Any] = {"output": {"out": "x", "quiet": True, "keep": 5, "resume": "y"}}
    settings |= {"launch": {"ranks": 3, "restarts": 2, "threads": None}, "training": {"schedule": "cosine"}}
    assert repeatable(settings, launched=False) == {"keep": 5, "ranks": 3, "lr_schedule": "cosine"}
    assert repeatable(settings, launched=True) == {"keep": 5, "lr_schedule": "cosine"}


def test_what_makes_histories_cold() -> None:
    before = {"data": "a"} | Config().to_dict()
    assert changed_on_resume(before, before) == []
    free = make_config(epochs=7, lr=0.5, kernel="torch", threads=3)
    assert changed_on_resume(before, {"data": "b"} | free.to_dict()) == []
    assert changed_on_resume(before, make_config(hidden=3, seed=4).to_dict()) == ["hidden", "seed"]


def test_settings_of_versions_before_count_as_defaults() -> None:
    old = Config().to_dict()
    del old["training"]["lr_schedule"], old["shape"]["edge_weights"]
    old["training"]["schedule"] = "constant"
    assert changed_on_resume(old, Config().to_dict()) == []
    old["training"]["schedule"] = "cosine"
    assert changed_on_resume(old, Config().to_dict()) == ["lr_schedule"]
    assert changed_on_resume(old, make_config(lr_schedule="cosine").to_dict()) == []


def test_a_run_of_a_version_before_keeps_what_it_did(tmp_path: Path) -> None:
    """Not what its preset sets today, where the version did not have that setting; a preset alone does."""
    old = make_config(preset="digest:4", staleness="epoch-fixed:bound=3", parameters="sum").to_dict()
    del old["training"]["parameters"], old["sampling"]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"config": old, "command": "sancus train"}))
    write_settings(tmp_path / "run", old)
    for arguments in (["--config", str(file)], ["--resume", str(tmp_path / "run")]):
        config = read_flags(arguments)[1]
        assert (config.factors.staleness, config.training.parameters) == ("epoch-fixed:bound=3", "sum")
    file.write_text(json.dumps({"preset": "digest:4"}))
    config = read_flags(["--config", str(file)])[1]
    assert (config.factors.staleness, config.training.parameters) == ("periodic:period=4", "average")


def test_ranks_of_a_resumed_run_know_how_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rank takes for its settings goes into its checkpoints, from which the next resume starts."""
    write_settings(tmp_path, Config(launch=LaunchSettings(ranks=2)).to_dict())
    read = ["--resume", str(tmp_path)]
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert read_flags(read)[1].launch.ranks is None, "torchrun says how many"
    monkeypatch.setenv(RUN, "a name")
    assert read_flags(read)[1].launch.ranks == 2


# The learning-rate schedule was called `schedule`.


def test_old_names_and_values_are_todays() -> None:
    for old, new in RENAMED.items():
        assert new.name in fields_by_flag()
        for value in new.values:
            assert modern({old: value, "x": 1}) == {new.name: value, "x": 1}
    assert modern({"schedule": "full", "lr_schedule": "linear"}) == {
        "schedule": "full",
        "lr_schedule": "linear",
    }


@pytest.mark.parametrize(
    "old, new",
    [
        ("--schedule cosine", "--lr-schedule cosine"),
        ("a --schedule=linear --x 1", "a --lr-schedule=linear --x 1"),
        ("--schedule full", "--schedule full"),
        ("--lr-schedule cosine", "--lr-schedule cosine"),
        ("schedule cosine", "schedule cosine"),
        ("--schedule", "--schedule"),
    ],
)
def test_old_flags_are_todays(old: str, new: str) -> None:
    assert modern_arguments(old.split()) == new.split()


@pytest.mark.parametrize("typed, meant", [("cosin", "cosine"), ("liner", "linear"), ("Constant", "constant")])
def test_a_mistyped_old_value_names_the_new_flag(typed: str, meant: str) -> None:
    allowed = choices(SCHEDULES, typed)
    line = f"schedule '{typed}' does not exist; choose from {allowed}, or use --lr-schedule {meant}"
    for mistake in (lambda: modern_arguments(["--schedule", typed]), lambda: make_config(schedule=typed)):
        with pytest.raises(UserError) as caught:
            mistake()
        assert str(caught.value) == line


@pytest.mark.parametrize("spec", ["full", "fulll", "pipeline", "minibatch", "my_file.py:Cosine"])
def test_what_means_a_schedule_is_left_to_the_schedules(spec: str) -> None:
    assert modern_arguments(["--schedule", spec]) == ["--schedule", spec]


def test_the_old_schedule_is_understood_everywhere(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"config": {"training": {"schedule": "cosine"}}}))
    write_settings(tmp_path / "run", {"training": {"schedule": "cosine"}})
    typed = [["--schedule", "cosine"], ["--schedule=cosine"], ["--lr-schedule", "cosine"]]
    read = [["--config", str(file)], ["--resume", str(tmp_path / "run")]]
    for arguments in (*typed, *read):
        assert read_flags(arguments)[1].training.lr_schedule == "cosine", arguments
    for keywords in ({"schedule": "cosine"}, {"lr_schedule": "cosine"}):
        assert make_config(**keywords).training.lr_schedule == "cosine"
        assert make_config(keywords).training.lr_schedule == "cosine"


# Kinds of plug-ins


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_complete(kind: str) -> None:
    assert set(KINDS[kind].flags) <= fields_by_flag().keys()
    assert all(summary(target) for target in KINDS[kind].table.values()), "a plug-in has no docstring"


def test_a_new_kind_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"plain": f"{__name__}:Plain"}
    monkeypatch.setitem(KINDS, "sampler", Kind(table, ("sampler",)))

    class Settings:
        sampler = "plain:size=3"

    assert list(specs_of(Settings())) == [("sampler", "plain:size=3")]
    check_specs(Settings())
    Settings.sampler = "plian"
    with pytest.raises(UserError, match=r"sampler 'plian' does not exist; .*did you mean plain"):
        check_specs(Settings())
    with pytest.raises(UserError, match="sampler 'plain' has no setting 'sise'; its settings: size"):
        try_spec("sampler", "plain:sise=3")


class Plain:
    """A sampler."""

    def __init__(self, size: int = 1) -> None:
        self.size = size


def test_a_run_names_all_its_plug_ins() -> None:
    config = make_config(preset="lean", backward="drop", model="sage")
    kinds = {kind for kind, _ in config.specs()}
    assert kinds == {
        "partitioner",
        "policy",
        "codec",
        "parameter-codec",
        "kernel",
        "model",
        "schedule",
        "sampler",
    }
    assert ("policy", "drop") in config.specs() and ("codec", "int2:tail=short") in config.specs()
