"""Sources in C++ are compiled once for all tests of a run, also those of other workers."""

from __future__ import annotations

import os

import pytest

from tests.native import objects


@pytest.fixture(scope="session", autouse=True)
def _objects(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    objects.folder = (base.parent if is_worker else base) / "objects"
    objects.folder.mkdir(exist_ok=True)
