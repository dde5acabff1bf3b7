"""Kernels of one test session share a cache, so that equal regions are compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    return KernelCache(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def build(tmp_path: Path, cache: KernelCache) -> Callable[..., LibraryBuild]:
    def build_here(*signatures: RegionSignature, name: str = "model.opt.ops.so") -> LibraryBuild:
        return build_library(signatures, Target(), tmp_path / name, cache=cache)

    return build_here
