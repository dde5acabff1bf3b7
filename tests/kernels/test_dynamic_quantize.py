"""Dynamic quantization to uint8: numbers, scale and zero point are ONNX Runtime's to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_model import fused_model, session
from ortkit.custom_ops.tvm.gemm.dynamic_quantize import ANCHOR, DynamicQuantize, match

from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import cost_model_of
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.refusal import Refused
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
HERE = [level for level in LEVELS if cpu.runs_here(level)]
pytestmark = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")

#: Ragged ends, a single number, many units.
SHAPES = [(1,), (3, 5), (16,), (64,), (65,), (7, 37), (2, 3, 130), (70, 96), (33, 768)]


def model_of(dims: str, *, narrow: bool = False) -> onnx.ModelProto:
    """Return a model that quantizes what it is given, and reads all three results."""
    cast = "w = Cast<to = 1>(x)" if narrow else ""
    kind, name = ("bfloat16", "w") if narrow else ("float", "x")
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[{dims}] x) => (uint8[{dims}] y, float s, uint8 z) {{
          {cast} y, s, z = DynamicQuantizeLinear({name})
        }}"""
    )


def found(proto: onnx.ModelProto, level: str) -> Candidate:
    model = open_model(proto)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(),
        RewriteOptions(Target("cpu", level), 2), Whole.of(model),
    )  # fmt: skip
    search = Search(
        scope, model.graph, lambda signature: refusal(signature, Target("cpu", level)),
        cost_model_of(scope),
    )  # fmt: skip
    (one,) = grown(search, replace(ANCHOR, must_pay=False))
    return one


def kernel(proto: onnx.ModelProto, level: str, folder: Path, cache: KernelCache, threads: int = 1):
    signature = found(proto, level).signature
    assert signature is not None
    made = build_library([signature], Target("cpu", level), folder / "k.so", cache=cache)
    assert made.library is not None, made.refused
    return session(fused_model(signature), made.library.path, threads)


def expected(x: np.ndarray) -> list[np.ndarray]:
    """Return what ONNX Runtime's own kernel makes of it."""
    dims = ", ".join(f"d{axis}" for axis in range(x.ndim))
    made = ort.InferenceSession(
        model_of(dims).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return made.run(None, {"x": x})


def check(run: ort.InferenceSession, x: np.ndarray) -> None:
    got, want = run.run(None, {"x": x}), expected(x)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("level", HERE)
def test_same_numbers_as_onnx_runtime(level: str, tmp_path: Path, cache: KernelCache) -> None:
    """Of tensors whose sizes are not known: of any size, range and magnitude."""
    random = np.random.default_rng(0)
    runs = {
        rank: kernel(model_of(", ".join("abc"[:rank])), level, tmp_path, cache)
        for rank in (1, 2, 3)
    }
    for shape in SHAPES:
        for magnitude in (1e-38, 1e-12, 0.01, 1.0, 37.0, 1e20, 2e38):
            x = random.standard_normal(shape).clip(-1, 1)
            for kind in (x, np.abs(x), -np.abs(x), x + 0.5):
                check(runs[len(shape)], (kind * magnitude).astype(np.float32))


@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("shape", [(70, 96), (3, 5), (1, 1)])
def test_tensors_of_known_sizes(
    level: str, shape: tuple[int, int], tmp_path: Path, cache: KernelCache
) -> None:
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    check(kernel(model_of("{}, {}".format(*shape)), level, tmp_path, cache), x)


@pytest.mark.parametrize("level", HERE)
def test_numbers_between_two_steps(level: str, tmp_path: Path, cache: KernelCache) -> None:
    """Where a quotient is rounded the wrong way, its number is a step off."""
    run = kernel(model_of("a"), level, tmp_path, cache)
    random = np.random.default_rng(2)
    for _ in range(60):
        low, high = -random.uniform(0, 9), random.uniform(0.001, 9)
        scale = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
        middles = ((np.arange(-255, 256) + 0.5) * np.float64(scale)).astype(np.float32)
        near = [middles]
        for _ in range(3):
            near += [np.nextafter(near[-1], np.float32(np.inf))]
        near += [2 * middles - each for each in near[1:]]
        x = np.concatenate([np.float32([low, high]), *near])
        check(run, x[(x >= np.float32(low)) & (x <= np.float32(high))])


@pytest.mark.parametrize("level", HERE)
def test_zeros_and_infinities(level: str, tmp_path: Path, cache: KernelCache) -> None:
    run = kernel(model_of("a"), level, tmp_path, cache)
    for numbers in ([0.0] * 20, [-0.0] * 5, [1.0] * 17, [-3.0] * 64, [np.inf, 1.0, -2.0], []):
        check(run, np.float32(numbers))


@pytest.mark.parametrize("level", HERE)
def test_what_is_no_number_is_forgotten_in_the_same_order(
    level: str, tmp_path: Path, cache: KernelCache
) -> None:
    run, random = kernel(model_of("a"), level, tmp_path, cache), np.random.default_rng(5)
    for count in (1, 5, 8, 13, 31, 32, 33, 40, 47, 64, 71, 133, 1000):
        for _ in range(30):
            x = random.standard_normal(count).astype(np.float32)
            x[random.integers(0, count, random.integers(1, 2 + count // 9))] = np.nan
            for kind in (x, np.abs(x), -np.abs(x)):  # zero is among the numbers all the same
                check(run, kind)


@pytest.mark.parametrize("level", HERE)
def test_what_a_cast_widens_is_read_as_it_is(
    level: str, tmp_path: Path, cache: KernelCache
) -> None:
    x = np.random.default_rng(3).standard_normal((33, 70)).astype(ml_dtypes.bfloat16)
    one = found(model_of("n, 70", narrow=True), level)
    assert [node.op_type for node in one.region.nodes] == ["Cast", "DynamicQuantizeLinear"]
    assert one.signature is not None
    assert one.signature.inputs[0].dtype == "bfloat16"
    run = kernel(model_of("n, 70", narrow=True), level, tmp_path, cache)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16), onnx.TensorProto.BFLOAT16
    )
    got = [each.numpy() for each in run.run_with_ort_values(None, {"x": value})]
    for one_result, other in zip(got, expected(x.astype(np.float32)), strict=True):
        np.testing.assert_array_equal(one_result, other)


@pytest.mark.parametrize("threads", [2, 3])
def test_parts_see_the_extremes_of_the_whole(
    threads: int, tmp_path: Path, cache: KernelCache
) -> None:
    run = kernel(model_of("a, b"), HERE[-1], tmp_path, cache, threads)
    x = np.random.default_rng(4).standard_normal((300, 512)).astype(np.float32)
    for at in (0, 150, 299):
        x[at, 3] = 30.0 + at
        check(run, x)


def signature(nodes: str, outputs: int, dtype: str = "float32") -> RegionSignature:
    names = ("y", "s", "z")[:outputs]
    body = f"""<opset_import: ["" : 18]> f (x) => ({", ".join(names)}) {{ {nodes} }}"""
    kinds = ("uint8", (9, 4)), ("float32", ()), ("uint8", ())
    made = tuple(TensorSpec(n, *k) for n, k in zip(names, kinds, strict=False))
    return RegionSignature("r", body, (TensorSpec("x", dtype, (9, 4)),), made)


@pytest.mark.parametrize(
    ("nodes", "outputs", "dtype", "kind"),
    [
        ("y, s, z = DynamicQuantizeLinear(x)", 3, "float32", DynamicQuantize),
        ("w = Cast<to = 1>(x) y, s, z = DynamicQuantizeLinear(w)", 3, "bfloat16", DynamicQuantize),
        ("w = Cast<to = 1>(x) y, s, z = DynamicQuantizeLinear(w)", 3, "float16", Refused),
        ("w = Relu(x) y, s, z = DynamicQuantizeLinear(w)", 3, "float32", Refused),
        ("y, s, z = DynamicQuantizeLinear(x)", 2, "float32", Refused),
        ("y = Relu(x)", 1, "float32", type(None)),
    ],
)
def test_which_regions_are_taken(nodes: str, outputs: int, dtype: str, kind: type) -> None:
    assert isinstance(match(signature(nodes, outputs, dtype)), kind)
