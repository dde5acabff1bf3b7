"""Int8 convolutions on a GPU: our kernels against the functions that they stand for."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import ortkit
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.targets.target import Target

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from fused_model import fused_model
from fused_model import session as on_cpu
from qdq_nets import NETS, Net, pooled
from qdq_regions import Region, feeds_of, regions


@pytest.mark.parametrize("name", NETS)
def test_kernels_compute_what_bodies_do(name: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    for number, region in enumerate(regions(name, "n", 30, 28)):
        path, cache = tmp_path / f"k{number}.so", KernelCache(tmp_path / "cache")
        made = build_library([region.signature], Target("cuda", "sm_90"), path, "triton", cache)
        assert not made.refused
        # Blocks go on to further tiles where there are many.
        for batch in (1, 37, 90):
            check(region, path, batch)


def check(region: Region, library: Path, batch: int) -> None:
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.register_custom_ops_library(str(library))
    model = fused_model(region.signature)
    feeds = feeds_of(region, batch)
    named = dict(zip([spec.name for spec in region.signature.inputs], feeds, strict=True))
    opened = ort.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    (found,), (wanted,) = opened.run(None, named), on_cpu(model).run(None, named)
    if found.dtype == np.uint8:
        off = np.abs(found.astype(np.int32) - wanted)
        assert off.max() <= 1
        assert (off > 0).mean() < 1e-5
        assert len(np.unique(wanted)) > 8
    else:
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("graph", [False, True], ids=["", "cuda graph"])
def test_a_net(graph: bool) -> None:
    pytest.importorskip("triton")
    net = Net()
    x = net.bytes(net.op("Relu", "x"), 0.02, 0)
    x = net.bytes(net.op("Relu", net.conv(x, (64, 64, 3, 3), pads=[1] * 4)), 0.3, 0)
    proto = net.model([8, 64, 56, 56], pooled(net, x, 64))
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    kinds = [region.kind for region in made.report.regions if region.emitted_as is not None]
    assert (kinds.count("int8_conv"), kinds.count("max_pool")) == (3, 1)
    x = np.random.default_rng(5).standard_normal((8, 64, 56, 56)).astype(np.float32)
    with ortkit.Session(proto, "cpu") as session:
        (expected,) = session.run({"x": x}).values()
    with ortkit.Session(made, "cuda", kernels="require", cuda_graph=graph) as session:
        for _ in range(3):
            (found,) = session.run({"x": x}).values()
    assert (np.abs(found - expected) > 1e-5).mean() < 1e-3
    assert len(np.unique(expected)) > 8
