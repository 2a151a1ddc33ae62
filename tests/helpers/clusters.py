"""What starts several hosts takes minutes: a sample in `make test`, all of it in `make clusters`."""

from __future__ import annotations

import os

import pytest


def only_in_full() -> pytest.MarkDecorator:
    """The mark of what is too slow for `make test`."""
    reason = "not in the sample of make test; make clusters runs it"
    return pytest.mark.skipif("SANCUS_CLUSTERS" not in os.environ, reason=reason)
