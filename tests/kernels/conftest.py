"""Equal regions are compiled once by all workers, and again only when their generator changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target
from tests.compiled_kernels import FOLDER


@pytest.fixture(scope="session")
def cache() -> KernelCache:
    return KernelCache(FOLDER)


@pytest.fixture
def build(tmp_path: Path, cache: KernelCache) -> Callable[..., LibraryBuild]:
    def build_here(*signatures: RegionSignature, name: str = "model.opt.ops.so") -> LibraryBuild:
        return build_library(signatures, Target(), tmp_path / name, cache=cache)

    return build_here
