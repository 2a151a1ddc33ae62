"""What a prediction asks of a finished run: its settings on a graph, on so many ranks. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sancus.config.resolve import make_config, read_config, repeatable
from sancus.config.settings import Config
from sancus.config.trust import check_trust
from sancus.errors import UserError
from sancus.launch.world import World, check_ranks
from sancus.runs.belongings import RUN_FILE
from sancus.runs.model_source import given_name, model_spec
from sancus.shards.cache import parts_of
from sancus.training.async_settings import AsyncSettings
from sancus.training.pipeline_settings import PipelineSettings

OF_SCHEDULES = (PipelineSettings, AsyncSettings)  # what says how to train, and nothing of an exact pass


@dataclass(frozen=True)
class Question:
    """One exact pass over a graph by the best weights of a run."""

    run_dir: Path
    data: str
    config: Config  # of the run, over the whole graph at once, whatever the schedule of training was
    ranks: int
    given: str | None  # the name of a model that a program gave, which no file of the run can name

    def check_model(self) -> None:
        """Refuse a run whose model exists in the program that trained it alone."""
        if self.given is not None:
            raise UserError(
                f"{self.run_dir} was trained from Python with {self.given}, which no file names; "
                f"ask there: sancus.predict({str(self.run_dir)!r}, model={self.given})"
            )


def question_of(
    run_dir: Path,
    data: str | None,
    ranks: int | None,
    world: World | None,
    *,
    trust: bool,
    whole: bool = True,
) -> Question:
    """The settings of a run as its files have them; its own number of ranks where none is wanted.

    `whole`: for a pass over the whole graph at once, whatever the schedule of training was.

    Code of others that the run names is only run with `trust`, or where this user has chosen it before.
    """
    file = run_dir / RUN_FILE
    if not file.is_file():
        raise UserError(f"{run_dir} holds no finished run; give the --out directory of one")
    recorded = read_config(file)
    facts: dict[str, Any] = json.loads(file.read_text())
    settings = repeatable(recorded, launched=True)
    source = str(data or settings.pop("data", "synthetic"))
    settings.pop("data", None)
    held = parts_of(source)
    if ranks is None and world is None:
        ranks = held or _ranks_of(facts)
    count = check_ranks(ranks, world)
    spec = model_spec(facts, str(settings.get("model", "gcn")))
    if not trust:
        named = settings | {"model": spec} | ({} if data else {"data": source})
        check_trust(named, str(file))
    if whole:
        of_training = {item.name for section in OF_SCHEDULES for item in fields(section)}
        kept = {name: value for name, value in settings.items() if name not in of_training}
        settings = kept | {"schedule": "full"}
    config = make_config(settings, model=spec, ranks=count)
    return Question(run_dir, source, config, count, given_name(facts))


def _ranks_of(facts: dict[str, Any]) -> int:
    """The number of ranks that the run had."""
    hardware = facts.get("hardware")
    ranks = hardware.get("ranks") if isinstance(hardware, dict) else None
    return ranks if isinstance(ranks, int) and ranks > 0 else 1
