"""Room for temporary files: where ranks meet, post what they do, and leave their last words."""

from __future__ import annotations

import errno
import tempfile

from sancus.errors import UserError

NEEDED = 1 << 18  # bytes; a run takes a few pages a rank


def check_temporary_space() -> None:
    """Refuse to start where there is no room for a few small files: every rank would fail in its own way."""
    try:
        with tempfile.TemporaryFile(buffering=0) as file:
            left = NEEDED
            while left:
                left -= file.write(bytes(left)) or 0
    except OSError as error:
        raise UserError(no_space(error)) from error


def no_space(error: OSError) -> str:
    """The line that tells a user that temporary files cannot be written."""
    where = error.filename or tempfile.tempdir
    place = f" in {where}" if where else ""
    return f"no room for temporary files{place} ({error.strerror or error}); free space or set TMPDIR"


def is_full(error: OSError) -> bool:
    """Whether a disk, a quota, or every folder for temporary files is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or "No usable temporary directory" in str(error)
