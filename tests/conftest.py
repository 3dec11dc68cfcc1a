"""Fixtures that the whole suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inflightd.daemon.models.catalog import CATALOG
from inflightd.daemon.models.pull import pull


@pytest.fixture(scope="session")
def model_path() -> Path:
    """SmolLM2-135M-Instruct: INFLIGHTD_TEST_MODEL, or the cache, filled by a pull if need be."""
    if given := os.environ.get("INFLIGHTD_TEST_MODEL"):
        return Path(given)
    return pull(CATALOG["smollm2-135m-instruct"])
