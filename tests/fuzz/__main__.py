"""Fuzz with atheris: `python -m tests.fuzz TARGET --seconds 60`; `--table DOC` writes the table.

Coverage of `sancus` steers it, from the corpus in `tests/fuzz/corpus/TARGET`. A finding is written to
`build/fuzz/` with its traceback, and ends it with exit code 77. `make fuzz` runs all targets.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from sancus.runs.directory import cpu_name
from tests.fuzz.targets import MOST, TARGETS

TOP = Path(__file__).parent
FOUND = Path("build/fuzz")
BEGIN, END = "<!-- begin: make fuzz -->", "<!-- end: make fuzz -->"
LIMITS = ("-timeout=60", "-rss_limit_mb=3000", f"-max_len={MOST}")
PROGRESS = re.compile(r"#(\d+)\s+\w+\s+cov: (\d+) ft: \d+ corp: (\d+)")
DONE = re.compile(r"stat::number_of_executed_units:\s+(\d+)")


def fuzz(name: str, arguments: list[str]) -> None:
    """This process becomes libFuzzer; it never returns."""
    import atheris

    with atheris.instrument_imports(include=["sancus"]):
        for seed in sorted((TOP / "corpus" / name).iterdir()):
            TARGETS[name](seed.read_bytes())
    atheris.Setup([name, *arguments], TARGETS[name], enable_python_coverage=True)
    atheris.Fuzz()


def watch(name: str, seconds: int, seed: int) -> dict[str, object]:
    """Fuzz in a process of its own; what came of it."""
    grown = FOUND / "corpus" / name
    grown.mkdir(parents=True, exist_ok=True)
    time_and_seed = (f"-max_total_time={seconds}", f"-seed={seed}", "-print_final_stats=1")
    flags = (*LIMITS, *time_and_seed, f"-artifact_prefix={FOUND}/{name}-")
    command = [sys.executable, "-m", "tests.fuzz", name, "--", *flags, str(grown), str(TOP / "corpus" / name)]
    began = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"SANCUS_HOME": str(FOUND.absolute() / "home")},
    )
    progress, executed = PROGRESS.findall(done.stdout), DONE.findall(done.stdout)
    runs, covered, _ = progress[-1] if progress else ("0", "0", "0")
    if done.returncode:
        (FOUND / f"{name}.txt").write_text(done.stdout)
        print(f"{name}: exit code {done.returncode}, see {FOUND}/{name}.txt", file=sys.stderr)
    return {
        "target": name,
        "inputs": int(executed[-1] if executed else runs),
        "covered": int(covered),
        "seconds": round(time.monotonic() - began),
        "findings": int(done.returncode != 0),
    }


def write_table(rows: list[dict[str, object]], document: Path) -> None:
    """Put the table between its marks."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{document} has no place for the table: {BEGIN} … {END}"
    where = f"`make fuzz` on {cpu_name()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}:"
    head = ["| target | inputs | places in the code reached | seconds | findings |", "|---|---|---|---|---|"]
    lines = [
        f"| {row['target']} | {row['inputs']} | {row['covered']} | {row['seconds']} | {row['findings']} |"
        for row in rows
    ]
    table = "\n".join([BEGIN, "", where, "", *head, *lines, "", END])
    document.write_text(f"{before}{table}{after}")


def main() -> int:
    """Fuzz all targets or some, one after the other."""
    if "--" in sys.argv:
        fuzz(sys.argv[1], sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="the document whose table is written")
    asked = parser.parse_args()
    rows = []
    for name in asked.targets or TARGETS:
        rows.append(watch(name, asked.seconds, asked.seed))
        print(json.dumps(rows[-1]), flush=True)
    if asked.table:
        write_table(rows, asked.table)
    return int(any(row["findings"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
