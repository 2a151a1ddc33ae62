"""No room for temporary files, or on the disk: one line, exit code 2."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from sancus.cli.command import make_app, run_verbs
from sancus.errors import UserError
from sancus.launch import local
from sancus.launch.arrivals import Arrivals
from sancus.launch.space import check_temporary_space

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/where")
NOWHERE = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")


@pytest.mark.parametrize("error", [FULL, NOWHERE], ids=["full", "nowhere"])
def test_room_for_temporary_files_is_asked_for_beforehand(error: OSError) -> None:
    check_temporary_space()
    with (
        mock.patch.object(tempfile, "TemporaryFile", side_effect=error),
        pytest.raises(UserError, match=r"no room for temporary files.*free space or set TMPDIR") as caught,
    ):
        check_temporary_space()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [FULL, NOWHERE], ids=["full", "nowhere"])
def test_the_launcher_says_it_in_one_line(error: OSError, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(tempfile, "mkdtemp", side_effect=error):
        assert local.run(lambda: None, [], 2, "gloo", 0, mock.Mock(Arrivals, received=[])) == 2
    line = capsys.readouterr().err
    assert line.startswith("sancus: no room for temporary files") and line.count("\n") == 1


@pytest.mark.parametrize("error", [FULL, NOWHERE], ids=["full", "nowhere"])
def test_any_verb_says_it_in_one_line(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = make_app()

    @app.command
    def verb() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["sancus", "verb"])
    with pytest.raises(SystemExit) as caught:
        run_verbs(app)
    line = capsys.readouterr().err
    assert caught.value.code == 2 and line.count("\n") == 1 and "free space" in line, line


def test_other_errors_of_files_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    app = make_app()

    @app.command
    def verb() -> None:
        (tmp_path / "nothing").read_text()

    monkeypatch.setattr(sys, "argv", ["sancus", "verb"])
    with pytest.raises(SystemExit) as caught:
        run_verbs(app)
    assert caught.value.code == 1 and "Traceback" in capsys.readouterr().err
