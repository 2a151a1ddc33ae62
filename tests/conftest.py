"""What every test runs under: one thread, small property tests, a cache directory of its own.

Also how tests are shared out to the workers of pytest-xdist, and the list of what was skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)
settings.register_profile("sancus", deadline=None, max_examples=40, suppress_health_check=SLOW_MACHINE)
settings.register_profile("sancus-ci", settings.get_profile("sancus"), derandomize=True)
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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests run in one worker, where what they share is made once; some have groups of their own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


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
