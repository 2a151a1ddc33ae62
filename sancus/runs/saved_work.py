"""The work of a run that is kept on disk: a session writes checkpoints of it, and goes on from the newest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from sancus.comm.records import gather_json
from sancus.config.resolve import changed_on_resume
from sancus.config.settings import flatten
from sancus.console.speaker import Speaker
from sancus.errors import UserError
from sancus.exchange.product_order import is_one_way
from sancus.runs.account import Account
from sancus.runs.belongings import CHECKPOINTS
from sancus.runs.build import Job
from sancus.runs.checkpoints import contents, durable
from sancus.runs.checkpoints.names import rank_file
from sancus.runs.checkpoints.store import Checkpoints, WholeCheckpoint
from sancus.runs.directory import has_checkpoint


class SavedWork:
    """Writes the state of a job and its account to a run's directory, and takes both up again."""

    def __init__(self, job: Job, account: Account, say: Speaker, warn: Callable[[str], None]) -> None:
        """`say` gets what a user wants to know, `warn` trouble that the run survives."""
        self._job = job
        self._account = account
        self._keep = account.request.config.output.keep
        self._say = say
        self._warn = warn

    def write(self, directory: Path, carried: Mapping[str, Any] | None = None) -> bool:
        """Write a checkpoint, on all ranks together; whether it is there.

        `carried` is the account of the last epoch, where more has happened since. Where the checkpoint cannot
        be written the user is warned and the run goes on: the one before is still there.
        """
        job, trainer = self._job, self._job.trainer
        carried = carried or self._account.carried()
        files = contents.pack(trainer, carried)
        shared = files if job.world.rank == 0 else None
        checkpoints = Checkpoints(directory / CHECKPOINTS, job.group, job.device, self._keep)
        reason = checkpoints.write(trainer.next_epoch, shared, contents.pack_rank(trainer))
        if reason is not None:
            others = "the one before is kept" if has_checkpoint(directory) else "there is none before it"
            self._warn(f"no checkpoint of epoch {trainer.next_epoch} ({reason}); {others}")
        return reason is None

    def resume(self, source: Path) -> None:
        """Go on from the newest whole checkpoint of the run in `source`.

        Bit for bit where ranks, parts and settings are equal; else weights and optimizer are taken over, and
        the histories of received rows start empty.
        """
        job, trainer = self._job, self._job.trainer
        folder = source / CHECKPOINTS
        checkpoint = Checkpoints(folder, job.group, job.device).newest()
        if checkpoint is None:
            raise UserError(f"no whole checkpoint in {folder}; start again without --resume")
        carried = contents.unpack(checkpoint.shared, trainer)
        self._say(checkpoint.describe())
        if carried["graph"] != job.shard.manifest["graph"]:
            raise UserError(
                f"{source} was trained on another graph; give its data to --resume, or start anew"
            )
        reason = self._why_cold(carried, checkpoint)
        states = self._states_of_part(carried, checkpoint.directory)
        if reason is None:
            assert checkpoint.own is not None
            contents.unpack_rank(checkpoint.own, trainer)
        elif states is not None:
            trainer.schedule.restore(states)
            self._say(f"{reason}: what the layers of each stage remember is taken over")
        else:
            self._say(f"{reason}: weights and optimizer are taken over, histories start cold")
        if not self._account.restore(carried):
            self._say(f"the bill starts anew: it was that of {carried['ranks']} ranks")

    def _states_of_part(self, carried: Mapping[str, Any], directory: Path) -> dict[str, torch.Tensor] | None:
        """What the schedules of all earlier ranks with this part remembered, where that is all there is.

        That is so where only the number of stages is another. None on all ranks where it is not.
        """
        job, exchange = self._job, self._job.trainer.exchange
        parts, before = exchange.group.size, carried["ranks"]
        remembers = any(policy.max_age for policy in exchange.crossing.policies.values())
        if (
            before == job.world.size
            or carried["shards"] != job.shard.digest()
            or changed_on_resume(carried["config"], self._account.settings())
            or remembers
            or not job.trainer.sync.codec.lossless
            or self._account.request.config.factors.error_feedback
        ):
            return None
        sums = durable.read_manifest(directory) or {}
        files = [rank_file(rank) for rank in range(exchange.group.rank, before, parts)]
        found = [durable.read_checked(directory / name, sums.get(name, "")) for name in files]
        if not all(gather_json(job.group, None not in found, job.device)):
            return None
        states: dict[str, torch.Tensor] = {}
        for content in found:
            assert content is not None
            states |= contents.schedule_state(content)
        return states

    def _why_cold(self, carried: Mapping[str, Any], checkpoint: WholeCheckpoint) -> str | None:
        """Why the histories of a checkpoint cannot be used; None where they can."""
        if carried["ranks"] != self._job.world.size:
            return f"the checkpoint was made by {carried['ranks']} ranks"
        if carried["shards"] != self._job.shard.digest():
            return "the parts or the data are others"
        matters = changed_on_resume(carried["config"], self._account.settings())
        if matters:
            return f"--{matters[0].replace('_', '-')} is another"
        one_way = is_one_way(self._job.trainer.exchange.crossing.policies)
        if one_way and "parameters" not in flatten(carried["config"]):
            return "a version before sent other rows where no gradient returns"
        return None if checkpoint.own is not None else "a rank's own file is missing or damaged"
