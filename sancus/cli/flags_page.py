"""`python -m sancus.cli.flags_page` prints `docs/flags.md`: every verb and flag, from the settings."""

from __future__ import annotations

import re

from sancus.cli.app import app

HEAD = """# Every verb and flag

Written by `make docs` from the configuration: do not edit. `sancus VERB --help` shows the same.

"""


def page() -> str:
    """The page as Markdown."""
    text = app.generate_docs(recursive=True, include_hidden=False, heading_level=1)
    body = text[text.index("## Table of Contents") :]
    body = re.sub(r"```console\n.*?\n```\n\n", "", body.replace("## Table of Contents", ""), flags=re.S)
    lines = [line.rstrip() for line in body.strip().splitlines()]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
