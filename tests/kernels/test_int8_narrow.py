"""Int8 products whose weights have 7 bits: without VNNI two of them are added up in 16 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session
from int8_convolutions import KINDS, Convolution
from int8_models import MODELS, Net
from ortkit.custom_ops.tvm.conv.int8 import Int8Convolution
from ortkit.custom_ops.tvm.conv.int8 import match as match_convolution
from ortkit.custom_ops.tvm.gemm.int8 import Int8Product, match
from test_int8_convolution import CASES, described
from test_int8_convolution import computed as convolved
from test_int8_product import SIZES, KernelBuild, computed, expected, found

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature
from ortkit.targets import cpu
from ortkit.targets.target import Target

HERE = [level for level in ("x86-64-v3", "x86-64-v4") if cpu.runs_here(level)]

pytestmark = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")


def narrowed(net: Net) -> Net:
    """Return a net whose weights reach -64 and 64."""
    weight = net.held["w"] = net.held["w"] // np.int8(2)
    weight.flat[:4] = -64, -64, 64, 64
    return net


def is_narrow(signature: RegionSignature | None) -> bool:
    """Say whether kernels are told of 7 bits."""
    assert signature is not None
    one = match(signature) or match_convolution(signature)
    assert isinstance(one, Int8Product | Int8Convolution)
    return one.form.is_narrow


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("size", ["ragged", "long", "few columns"])
@pytest.mark.parametrize("kind", ["qdq_sums", "dynamic"])
def test_products_have_onnx_runtimes_numbers(
    kind: str, size: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    net = narrowed(Net(*SIZES[size]))
    proto = MODELS[kind](net)
    assert is_narrow(found(proto, level).signature)
    got = computed(net, proto, level, KernelBuild(tmp_path, cache))
    np.testing.assert_array_equal(got, expected(proto, net.feeds))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("case", ["3x3", "point", "first layer", "groups"])
def test_convolutions_have_onnx_runtimes_numbers(
    case: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    net = Convolution(**CASES[case])  # type: ignore[arg-type]
    proto = KINDS["qdq"](narrowed(net))  # type: ignore[arg-type]
    assert is_narrow(described(proto, level)[1].signature)
    got = convolved(net, proto, level, tmp_path, cache)
    np.testing.assert_array_equal(got, expected(proto, net.feeds))


@pytest.mark.parametrize("weight", [-64, 64])
@pytest.mark.parametrize("level", HERE)
def test_the_largest_operands_saturate_nothing(
    level: str, weight: int, tmp_path: Path, cache: KernelCache
) -> None:
    net = Net(4, 64, 32, zero=0)
    net.feeds["x"][...], net.held["w"][...] = 255, weight
    net.held |= {"xs": np.float32(1.0), "ws": np.ones(32, np.float32), "one": np.float32(1.0)}
    net.add("MatMulIntegerToFloat", ["x", "w", "one", "ws", "xz"], "o")
    proto = net.model()
    assert is_narrow(found(proto, level).signature)
    got = computed(net, proto, level, KernelBuild(tmp_path, cache))
    np.testing.assert_array_equal(got, np.full((4, 32), 255.0 * weight * 64))


@pytest.mark.parametrize("weight", [-65, 65])
def test_one_larger_weight_is_enough(weight: int) -> None:
    net = narrowed(Net())
    net.held["w"][3, 7] = weight
    assert not is_narrow(found(MODELS["qdq"](net), HERE[0]).signature)


def test_vnni_is_told_of_nothing() -> None:
    """Its kernels stay the same whatever the weights are."""
    net = narrowed(Net())
    keys = set()
    for held in (net.held["w"], net.held["w"] * np.int8(2) + np.int8(1)):
        net = Net()
        net.held["w"] = held
        signature = found(MODELS["qdq"](net), "x86-64-v4-bf16").signature
        assert signature is not None
        assert not is_narrow(signature)
        keys.add(signature.key)
    assert len(keys) == 1


def test_depthwise_filters_are_told_of_nothing() -> None:
    net = Convolution(**CASES["depthwise"])  # type: ignore[arg-type]
    proto = KINDS["qdq"](narrowed(net))  # type: ignore[arg-type]
    assert not is_narrow(described(proto, HERE[0])[1].signature)


@pytest.mark.parametrize("level", HERE)
def test_kernels_cut_what_the_body_cuts(level: str, tmp_path: Path, cache: KernelCache) -> None:
    """A kernel is what its body says, whatever weights it is given."""
    net = narrowed(Net(9, 70, 40))
    one = found(MODELS["qdq"](net), level)
    assert one.signature is not None
    specs = tuple(replace(s, name=f"i{n}") for n, s in enumerate(one.signature.inputs))
    signature = replace(one.signature, inputs=specs)
    feeds: dict[str, np.ndarray] = {}
    for spec, value in zip(specs, one.region.inputs, strict=True):
        constant = value.const_value
        feeds[spec.name] = net.feeds[value.name or ""] if constant is None else constant.numpy()
        if spec.dtype == "int8":
            feeds[spec.name] = np.random.default_rng(1).integers(-128, 128, spec.shape, np.int8)
    made = build_library([signature], Target("cpu", level), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    got, by_body = (
        session(fused_model(signature), *library).run(None, feeds)[0]
        for library in ([made.library.path], [])
    )
    np.testing.assert_array_equal(got, by_body)
