"""The model that the tests of measuring share."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from timed_model import TEXT, WIDTH, Fused

from ortkit.optimization.call import OptimizeOptions, optimize


@pytest.fixture(scope="session")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Fused:
    folder = tmp_path_factory.mktemp("fused")
    original = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), original)
    optimized = optimize(original, OptimizeOptions(verify=False))
    saved, library = optimized.save(folder / "m.opt.onnx")
    random = np.random.default_rng(0)
    x, w = (random.normal(size=(size, WIDTH)).astype(np.float32) for size in (256, WIDTH))
    np.savez(folder / "feeds.npz", x=x, w=w)
    return Fused(original, saved, library, folder / "feeds.npz", optimized)
