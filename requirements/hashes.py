"""Pins with the SHA-256 of every file that PyPI has of them: `python requirements/hashes.py < pins > lock`.

Pins are lines `name==version`; lines that begin with `#` pass through. All files of a version are listed, so
that one lock file serves every Python and machine. `--index` takes another index of the same form (PEP 503).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag
from urllib.request import Request, urlopen

INDEX = "https://pypi.org/simple"
AT_ONCE = 8
SECONDS = 60
ARCHIVES = (".tar.gz", ".zip")


class Links(HTMLParser):
    """Files of a page, by name, with their SHA-256."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a link that has a hash behind it."""
        where, fragment = urldefrag(dict(attrs).get("href") or "")
        if tag == "a" and fragment.startswith("sha256="):
            self.found[unquote(where.rpartition("/")[2])] = fragment.removeprefix("sha256=")


def canonical(name: str) -> str:
    """One spelling of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_of(file: str, name: str, version: str) -> bool:
    """Whether a file is a wheel or a source archive of this version."""
    if file.endswith(".whl"):
        project, found, *_ = file.split("-")
        return canonical(project) == name and found == version
    for ending in ARCHIVES:
        if file.endswith(ending):
            project, _, found = file.removesuffix(ending).rpartition("-")
            return canonical(project) == name and found == version
    return False


def hashes_of(pin: str, index: str) -> list[str]:
    """The hashes of all files of a pin, in order; an error where there are none."""
    name, _, version = pin.partition("==")
    links = Links()
    page = Request(f"{index}/{canonical(name)}/", headers={"Accept": "text/html"})
    try:
        with urlopen(page, timeout=SECONDS) as answer:
            links.feed(answer.read().decode())
    except OSError as error:
        raise LookupError(f"{pin}: {page.full_url}: {error}") from error
    found = sorted({sha for file, sha in links.found.items() if is_of(file, canonical(name), version)})
    if not found:
        raise LookupError(f"{pin}: {index} has no file of it with a SHA-256; is the version right?")
    return found


def locked(lines: Iterable[str], index: str) -> Iterator[str]:
    """Every line with its hashes below it, as pip reads them."""
    lines = [line.strip() for line in lines if line.strip()]
    pins = [line for line in lines if not line.startswith("#")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        hashes = dict(zip(pins, pool.map(lambda pin: hashes_of(pin, index), pins), strict=True))
    for line in lines:
        yield " \\\n".join([line, *(f"    --hash=sha256:{sha}" for sha in hashes.get(line, []))])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python requirements/hashes.py")
    parser.add_argument("--index", default=INDEX)
    try:
        print("\n".join(locked(sys.stdin, parser.parse_args().index)))
    except LookupError as error:
        sys.exit(f"hashes: {error}")
