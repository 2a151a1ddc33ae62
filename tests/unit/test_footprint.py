"""Memory of a program: its processes are found, and what they share counts once."""

from __future__ import annotations

import os
import subprocess
import sys

from experiments.peers.footprint import Footprint, family, pss_bytes

SIZE = 200_000_000
PARENT_AND_FORK = f"""
import os, sys
held = bytearray(b"x" * {SIZE // 1000}) * 1000
ready, tell = os.pipe()
if os.fork() == 0:
    os.write(tell, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(ready, 1)
print("ready", flush=True)
sys.stdin.read()
"""


def test_pages_of_forked_processes_count_once() -> None:
    """Sampled while nobody forks or ends: a sample is no snapshot, it reads one process after the other."""
    command = [sys.executable, "-c", PARENT_AND_FORK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = list(family(process.pid))
        total = sum(map(pss_bytes, found))
        with Footprint(process.pid) as footprint:
            while footprint.peak_bytes < SIZE:
                assert process.poll() is None
                os.sched_yield()
        process.stdin.close()
        process.wait()
    assert len(found) == 2 and found[0] == process.pid
    assert SIZE < total < 1.5 * SIZE
    assert SIZE < footprint.peak_bytes < 1.5 * SIZE
    assert pss_bytes(process.pid) == 0
