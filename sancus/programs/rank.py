"""`python -m sancus.programs.rank rank FOLDER`: one rank of a program's errand.

It ends as a rank of the command line does: a mistake is one line, a failure has its traceback on stderr.
"""

from __future__ import annotations

import os
from pathlib import Path

from sancus.cli.command import make_app, run_verbs
from sancus.console.speaker import SILENT
from sancus.launch.process import follow_parent
from sancus.launch.proxy import follow_proxy
from sancus.launch.world import LAUNCHER_PID, detect
from sancus.programs.errand import unpack
from sancus.programs.events import RemoteSpeaker

VERB = "rank"


def rank(folder: Path, /) -> None:
    """Do the errand that is in a folder, as the rank that the environment names."""
    world = detect(os.environ)
    assert world is not None, "a launcher of ours starts ranks"
    if world.launcher == "local":
        follow_parent(os.environ.get(LAUNCHER_PID))
    else:
        follow_proxy(world.local_rank, os.environ)
    say = RemoteSpeaker(folder) if world.rank == 0 else SILENT
    found = unpack(folder).run(world, say)
    if found is not None:
        found.write(folder)


def main() -> None:
    """Entry point of a rank."""
    app = make_app()
    app.command(rank, name=VERB)
    run_verbs(app)


if __name__ == "__main__":
    main()
