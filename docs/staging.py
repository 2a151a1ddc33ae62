"""The pages of the site, gathered with the places that they have here: `python docs/staging.py`.

README, the pages of `docs/` and the READMEs of experiments link each other by their paths in the repository,
so that they can be read there. The site keeps these paths: everything is copied to `build/pages`, which
MkDocs reads.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGES = (
    *("*.md", "CITATION.cff", "LICENSE", "tests/README.md", "examples/*.py", "experiments/*.md"),
    *(f"experiments/*/*.{kind}" for kind in ("md", "toml", "txt", "py")),
    *(f"docs/**/*.{kind}" for kind in ("md", "png", "svg", "ipynb")),
)


def stage(folder: Path) -> None:
    """Make `folder` anew, with every page and picture of the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    for pattern in PAGES:
        for source in TOP.glob(pattern):
            target = folder / source.relative_to(TOP)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


if __name__ == "__main__":
    stage(Path(sys.argv[1]) if len(sys.argv) > 1 else TOP / "build" / "pages")
