"""What the processes of a test run share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests that run the whole demo keep responses, in all processes of a test run: one of them computes."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "demo"
