"""What every test runs under: one thread, small property tests, a cache directory of its own."""

from __future__ import annotations

import os
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
