"""The secret that ranks of a run may share, from the environment. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sancus.errors import UserError

SECRET = "SANCUS_SECRET"  # the secret itself
SECRET_FILE = "SANCUS_SECRET_FILE"  # or the file that it is in
LEAST = 16  # bytes of a secret; shorter ones can be guessed
MOST = 4096
ADVICE = f"give all ranks the same {SECRET} or {SECRET_FILE}"


def read_secret(env: Mapping[str, str]) -> bytes | None:
    """The secret, without white space around it; None where there is none. No message ever quotes it."""
    if SECRET in env and SECRET_FILE in env:
        raise UserError(f"{SECRET} and {SECRET_FILE} are both set; unset one of them")
    if SECRET in env:
        return _checked(env[SECRET].encode(errors="surrogateescape"), SECRET)
    if SECRET_FILE not in env:
        return None
    path = Path(env[SECRET_FILE])
    if path.exists() and not path.is_file():
        raise UserError(f"{SECRET_FILE}={path} is no file; give the path of a file with the secret")
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{SECRET_FILE}={path}: cannot be read ({reason}); check the path") from error
    return _checked(content, SECRET_FILE)


def _checked(content: bytes, variable: str) -> bytes:
    secret = content.strip()
    if not LEAST <= len(secret) <= MOST:
        raise UserError(
            f"the secret of {variable} has {len(secret)} bytes; {LEAST} to {MOST} are allowed: "
            "make one with: openssl rand -hex 32"
        )
    return secret
