"""What every test runs under: one thread, small property tests, a cache directory of its own.

Also how tests are shared out to the workers of pytest-xdist, and the list of what was skipped.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("sancus", deadline=None, max_examples=40, suppress_health_check=SLOW_MACHINE)
settings.register_profile("sancus-ci", settings.get_profile("sancus"), derandomize=True)
APART = [f"tests/ranks/test_{name}.py" for name in ("law", "combinations", "composition", "staleness")]
APART += ["tests/launch/test_docs.py"]
settings.load_profile("sancus-ci" if os.environ.get("CI") else "sancus")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """The graphs of the tests are tiny: more threads only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test, and no process that a test starts, writes to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANCUS_HOME", str(tmp_path_factory.mktemp("sancus-home")))
        yield


@pytest.fixture
def hangups_count() -> Iterator[None]:
    """This process, and what it starts, heed SIGHUP: also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under `--dist loadfile` a file's tests run in one worker, where what they share is made once.

    The tests of `APART` are shared out by their first parameter: each value of it is a session of ranks, or a
    page, of its own.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            return file + (re.split(r"[\[\]-]", test + "[")[1] if file in APART else "")

    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Why tests were skipped: one line a reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "?"
        for report in terminalreporter.stats.get("skipped", [])
    )
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4d}  {reason}")
