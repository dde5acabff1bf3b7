"""Products in float32 on CPUs: what a kernel takes in, and that the model computes what it did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from ortkit.custom_ops.tvm.gemm.fp32 import ANCHOR
from ortkit.custom_ops.tvm.gemm.fp32_rates import (
    AVX2_RATES,
    RATES,
    ProductRates,
    packing,
    rates_at,
)
from region_models import feeds_of, found_by, run, scope_of, search_of

from ortkit.fusion.plan import compile_regions
from ortkit.fusion.regions import cost_model
from ortkit.fusion.regions.anchors import grown, is_for
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.kernels.build.library import missing_toolchain
from ortkit.kernels.tuning.calibration import Calibration, machine, save_calibration
from ortkit.rewrite.scope import Scope
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVEL = "x86-64-v4"
runs_wide = pytest.mark.skipif(
    missing_toolchain() is not None or not Target().resolved().level.startswith(LEVEL),
    reason="products are for processors with AVX-512",
)


def model_of(
    nodes: str,
    inputs: str = "float[48, 128] x",
    outputs: str = "y",
    opset: int = 20,
    **sizes: object,
) -> onnx.ModelProto:
    """Return a model with constants by name and size; `w` is [128, 192] if nothing is said."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    ends = ", ".join(f"float[?] {name}" for name in outputs.split())
    proto = onnx.parser.parse_model(f"{head} g ({inputs}) => ({ends}) {{ {nodes} }}")
    random = np.random.default_rng(3)
    for name, size in {"w": (128, 192), **sizes}.items():
        array = random.standard_normal(size, np.float32) / 8
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def found(proto: onnx.ModelProto) -> tuple[Scope, list[Candidate]]:
    scope = scope_of(ir.from_proto(proto), level=LEVEL)
    return scope, found_by(ANCHOR, scope)


def reasons(proto: onnx.ModelProto) -> list[str]:
    scope, taken = found(proto)
    assert taken == []
    return [miss.reason for miss in scope.log.misses]


def ops(candidate: Candidate) -> list[str]:
    return [node.op_type for node in candidate.region.nodes]


@pytest.mark.parametrize(
    ("nodes", "taken"),
    [
        ("y = MatMul(x, w)", ["MatMul"]),
        ("m = MatMul(x, w)  y = Add(b, m)", ["MatMul", "Add"]),
        ("m = Gemm(x, w, b)  y = Gelu(m)", ["Gemm", "Gelu"]),
        ("m = Gemm(x, w, b)  y = com.microsoft.QuickGelu<alpha = 1.0>(m)", ["Gemm", "QuickGelu"]),
        # What reads other values, or is read by two, or a row that is no bias, ends the line.
        ("m = Gemm(x, w, b)  g = Relu(m)  y = Add(g, r)", ["Gemm", "Relu"]),
        ("m = Gemm(x, w, b)  g = Gelu(m)  y = Add(m, g)", ["Gemm"]),
        ("m = Gemm(x, w, b)  y = Add(m, b)", ["Gemm"]),
        ("m = MatMul(x, w)  y = Add(m, c)", ["MatMul"]),
        ("m = MatMul(x, w)  y = Add(m, s)", ["MatMul", "Add"]),
        ("m = MatMul(x, w)  y = Softmax(m)", ["MatMul"]),
    ],
)
def test_what_a_region_takes_in(nodes: str, taken: list[str]) -> None:
    proto = model_of(nodes, "float[48, 128] x, float[48, 192] r", b=192, c=(48, 1), s=(1, 192))
    _, (one,) = found(proto)
    assert ops(one) == taken
    assert one.signature is not None


@pytest.mark.parametrize(
    ("nodes", "inputs", "sizes", "reason"),
    [
        ("y = Gemm<transA = 1>(x, w)", "float[128, 48] x", {}, "transposed"),
        (
            "y = MatMul(x, w)",
            "float[8, 128] x",
            {},
            "8 rows times a matrix of 128 x 192 are too few",
        ),
        ("y = MatMul(x, w)", "float[48, 16] x", {"w": (16, 192)}, "too few"),
        ("y = MatMul(x, w)", "float[2, 48, 128] x", {"w": (2, 128, 192)}, "3 axes"),
        ("y = Gemm(x, w, c)", "float[48, 128] x", {"c": (48, 1)}, "one constant for each column"),
        (
            "y = Gemm(x, w, c)",
            "float[48, 128] x, float[192] c",
            {},
            "one constant for each column",
        ),
        ("y = MatMul(x, w)  z = Gather(w, i)", "float[48, 128] x, int64[2] i", {}, "by a Gather"),
        ("y = MatMul(x, w)", "float[1500, 3072] x", {"w": (3072, 192)}, "predicted to gain"),
    ],
)
def test_what_is_left_has_a_reason(
    nodes: str, inputs: str, sizes: dict[str, tuple[int, ...]], reason: str
) -> None:
    outputs = "y z" if "z =" in nodes else "y"
    (got,) = reasons(model_of(nodes, inputs, outputs, **sizes))
    assert reason in got


def test_other_products_are_not_looked_at() -> None:
    inputs = "float[48, 128] x, float[128, 48] v, double[48, 128] d"
    nodes = "y = MatMul(x, v)  z = MatMul(d, u)"
    proto = model_of(nodes, inputs, "y")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((128, 192)), "u"))
    assert reasons(proto) == []


@pytest.mark.sampled(3)
@runs_wide
@pytest.mark.parametrize(
    ("nodes", "inputs", "sizes"),
    [
        ("m = MatMul(x, w)  s = Add(m, b)  y = Gelu(s)", "float[n, 128] x", {"b": 192}),
        ("y = Gemm<transB = 1>(x, w, b)", "float[48, 128] x", {"w": (200, 128), "b": 200}),
        ("y = Gemm<alpha = 0.5, beta = 2.0>(x, w, b)", "float[48, 128] x", {"b": (1, 192)}),
        ("y = Gemm<beta = 3.0>(x, w, b)", "float[48, 128] x", {"b": ()}),
        ("m = MatMul(x, w)  y = Add(m, b)", "float[batch, 3, seq, 128] x", {"b": 192}),
        ("y = MatMul(x, w)", "float[2, 24, 128] x", {"w": (1, 128, 200)}),
    ],
)  # fmt: skip
def test_same_results_with_and_without_kernels(
    nodes: str, inputs: str, sizes: dict[str, object], tmp_path: Path
) -> None:
    proto = model_of(nodes, inputs, **sizes)
    model = ir.from_proto(proto)
    reports, library, _ = compile_regions(
        [scope_of(model)], tmp_path / "a.ops.so", "tvm", Target(), lambda *_: None
    )
    assert library is not None
    assert [report.reason for report in reports] == [""]
    after = ir.to_proto(model)
    assert len(after.graph.node) == 1
    assert sum(len(each.raw_data) for each in after.graph.initializer) < 1.3 * sum(
        len(each.raw_data) for each in proto.graph.initializer
    )
    for size in (1, 5, 48):
        feeds = feeds_of(proto, {"n": size, "batch": 2, "seq": size})
        (want,) = run(proto, feeds)
        for got in (run(after, feeds), run(after, feeds, library=library)):
            assert got[0].shape == want.shape
            np.testing.assert_allclose(got[0], want, rtol=0, atol=2e-5)


@runs_wide
def test_products_of_one_matrix_share_it(tmp_path: Path) -> None:
    nodes = "p = Gemm(x, w, b)  q = Gemm(v, w)  y = Softmax(p)  z = Softmax(q)"
    proto = model_of(nodes, "float[48, 128] x, float[64, 128] v", "y z", b=192)
    model = ir.from_proto(proto)
    _, library, _ = compile_regions(
        [scope_of(model)], tmp_path / "a.ops.so", "tvm", Target(), lambda *_: None
    )
    assert sorted(model.graph.initializers) == ["b", "w/panels"]
    feeds = feeds_of(proto, {})
    for got, want in zip(
        run(ir.to_proto(model), feeds, library=library), run(proto, feeds), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


def test_a_product_that_is_denied_stays_as_it_is(tmp_path: Path) -> None:
    proto = model_of("m = Gemm(x, w, b)  y = Relu(m)", b=192)
    model = ir.from_proto(proto)
    scope = scope_of(model, ["fuse-regions:product_relu:y"], level=LEVEL)
    reports, library, _ = compile_regions(
        [scope], tmp_path / "a.ops.so", "tvm", Target("cpu", LEVEL), lambda *_: None
    )
    assert library is None
    assert [report.emitted_as for report in reports if "product" in report.kind] == [None]
    assert [node.op_type for node in model.graph] == ["Gemm", "Relu"]
    assert sorted(model.graph.initializers) == ["b", "w"]


def test_processors_that_products_were_not_measured_on(tmp_path: Path) -> None:
    model = ir.from_proto(model_of("y = Gemm(x, w, b)", b=192))
    target = Target("cpu", "x86-64-v2")
    reports, _, _ = compile_regions(
        [scope_of(model, level=target.level)],
        tmp_path / "a.ops.so",
        "tvm",
        target,
        lambda *_: None,
    )
    assert reports == ()
    assert [node.op_type for node in model.graph] == ["Gemm"]


@pytest.mark.parametrize(
    ("level", "is_taken"), [("x86-64-v2", False), ("x86-64-v3", True), ("x86-64-v4-bf16", True)]
)
def test_products_that_a_model_already_has_are_for_the_same_processors(
    level: str, is_taken: bool
) -> None:
    """`kept` asks so of fused nodes, whose kernels there could be for any processor."""
    _, (product,) = found(model_of("m = Gemm(x, w, b)  y = Relu(m)", b=192))
    assert product.signature is not None
    other = replace(product.signature, name="conv_1d")
    assert is_for(Target("cpu", level), product.signature) is is_taken
    assert is_for(Target("cpu", level), other)


@runs_wide
def test_bodies_of_control_flow(tmp_path: Path) -> None:
    nodes = """y = If(c) <
      then_branch = t () => (float[48, 192] a) { m = MatMul(x, w)  a = Relu(m) },
      else_branch = e () => (float[48, 192] d) { d = MatMul(x, w) }>"""
    proto = model_of(nodes, "float[48, 128] x, bool c")
    model = ir.from_proto(proto)
    reports, library, _ = compile_regions(
        [scope_of(model)], tmp_path / "a.ops.so", "tvm", Target(), lambda *_: None
    )
    assert [report.emitted_as is None for report in reports] == [False, False]
    assert list(model.graph.initializers) == ["w/panels"]
    x = np.random.default_rng(0).standard_normal((48, 128), np.float32)
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        (want,), (got,) = run(proto, feeds), run(ir.to_proto(model), feeds, library=library)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


@runs_wide
@pytest.mark.parametrize("columns", [512, 500])
def test_deep_matrices_are_multiplied(columns: int, tmp_path: Path) -> None:
    proto = model_of("y = MatMul(x, w)", "float[80, 2048] x", w=(2048, columns))
    model = ir.from_proto(proto)
    reports, library, _ = compile_regions(
        [scope_of(model)], tmp_path / "a.ops.so", "tvm", Target(), lambda *_: None
    )
    assert [report.emitted_as is not None for report in reports] == [True]
    x = np.random.default_rng(0).standard_normal((80, 2048), np.float32)
    (want,), (got,) = run(proto, {"x": x}), run(ir.to_proto(model), {"x": x}, library=library)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("known", "level", "microarchitecture", "rates"),
    [
        ("zen4", "native", "zen4", RATES["zen4"]), ("", "native", "", RATES[""]),
        ("zen9", "native", "zen9", RATES[""]), ("zen4", "x86-64-v4", "zen", RATES[""]),
        ("zen4", "x86-64-v3", "zen", None), ("", "x86-64-v3", "", AVX2_RATES[""]),
        ("zen4", "x86-64-v4-amx", "", RATES[""]),
    ],
)  # fmt: skip
def test_rates_are_those_of_the_microarchitecture_where_it_is_the_target(
    known: str,
    level: str,
    microarchitecture: str,
    rates: ProductRates | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lower level than that of a Zen 4 is for earlier processors of its maker."""
    monkeypatch.setattr(cpu, "native_microarchitecture", lambda: known)
    monkeypatch.setattr(cpu, "native_level", lambda: "x86-64-v4-bf16")
    assert rates_at(Target("cpu", level).resolved().level) is rates
    assert cpu.microarchitecture_at(level) == microarchitecture


def test_products_of_avx2_are_not_for_processors_where_they_gain_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor for what follows them there, which a kernel of its own may compute."""
    proto = model_of("m = Gemm(x, w, b)  y = Gelu(m)", b=192)
    for known, taken in (("", ["product_gelu"]), ("zen", [])):
        monkeypatch.setattr(cpu, "microarchitecture_at", lambda _, known=known: known)
        scope = scope_of(ir.from_proto(proto), level="x86-64-v3")
        found = [item.signature for item in found_by(ANCHOR, scope)]
        assert [signature.name for signature in found if signature is not None] == taken


def test_products_of_avx2_are_priced_with_the_rows_of_one_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long rows gain too little there to be taken, but lose nothing where samples are many."""
    monkeypatch.setattr(cpu, "microarchitecture_at", lambda _: "")
    for shape, is_taken in (("n, 128, 128", True), ("n, 1500, 128", False), ("16384, 128", False)):
        proto = model_of("y = MatMul(x, w)", f"float[{shape}] x")
        scope = scope_of(ir.from_proto(proto), level="x86-64-v3")
        taken = [item.signature is not None for item in found_by(ANCHOR, scope)]
        assert taken == ([True] if is_taken else [])


def test_products_of_avx2_are_not_of_rows_that_leave_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "microarchitecture_at", lambda _: "")
    proto = model_of("m = MatMul(x, w)  y = Gelu(m)", "float[1500, 512] x", w=(512, 192))
    scope = scope_of(ir.from_proto(proto), level="x86-64-v3")
    assert [item.signature for item in found_by(ANCHOR, scope) if item.signature] == []


def test_every_microarchitecture_has_rates_of_every_number_of_rows_and_panel() -> None:
    at_levels = [(LEVEL, rates) for rates in RATES.values()]
    at_levels += [("x86-64-v3", rates) for rates in AVX2_RATES.values() if rates is not None]
    for level, rates in at_levels:
        for one in (rates.runtime, rates.ours):
            limits = [limit for limit, _ in one]
            assert limits == sorted(limits)
            assert limits[-1] == 1 << 62
        widths = {packing(level, 512, columns).shape[-1] for columns in range(64, 300)}
        assert widths <= rates.deep.keys()


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 17, "zen4"), ("AuthenticAMD", 25, 0x61, "zen4"),
        ("AuthenticAMD", 25, 1, "zen"), ("AuthenticAMD", 25, 0x50, "zen"),
        ("AuthenticAMD", 23, 49, "zen"), ("AuthenticAMD", 21, 2, ""),
        ("AuthenticAMD", 26, 17, ""), ("GenuineIntel", 25, 17, ""), ("GenuineIntel", 6, 143, ""),
    ],
)  # fmt: skip
def test_processors_are_told_apart(vendor: str, family: int, model: int, name: str) -> None:
    assert cpu.microarchitecture_of(vendor, family, model) == name


@pytest.mark.parametrize("facts", [{}, {"cpu family": "x", "model": "1"}, {"model": "17"}])
def test_an_unreadable_processor_has_the_rates_of_its_level(
    facts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_cpu_facts", lambda: facts)
    assert cpu.native_microarchitecture() == ""


_AVX2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
_AVX512 = f"{_AVX2} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "flags", "level"),
    [
        ("GenuineIntel", 6, 94, _AVX2, "x86-64-v3"),  # Skylake of desktops
        ("GenuineIntel", 6, 85, _AVX512, "x86-64-v4"),  # Skylake
        ("AuthenticAMD", 26, 68, _AVX512, "x86-64-v4"),  # Zen 5
        ("NobodyKnows", 999, 1, _AVX2, "x86-64-v3"),
        ("NobodyKnows", 999, 1, _AVX512, "x86-64-v4"),
    ],
)
def test_a_processor_never_seen_has_the_rates_of_its_level(
    vendor: str, family: int, model: int, flags: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {
        "vendor_id": vendor, "cpu family": str(family), "model": str(model), "flags": flags,
    }  # fmt: skip
    monkeypatch.setattr(cpu, "_cpu_facts", lambda: facts)
    assert cpu.native_level() == Target().resolved().level == level
    assert cpu.native_microarchitecture() == ""
    assert rates_at(level) is (RATES if level == "x86-64-v4" else AVX2_RATES)[""]
    scope = scope_of(ir.from_proto(model_of("y = MatMul(x, w)")), level=level)
    taken = [item.signature is not None for item in found_by(ANCHOR, scope)]
    assert taken == [True]


@pytest.mark.parametrize(("factor", "is_taken"), [(0.9, True), (1.0, True), (1.3, False)])
def test_what_was_measured_here_decides(
    factor: float, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    save_calibration(Calibration(kernels=(("product", factor),), machine=machine()))
    for level, is_here in ((LEVEL, True), ("x86-64-v4-bf16", False)):
        monkeypatch.setattr(cost_model, "native_level", lambda level=level: level)
        scope = scope_of(ir.from_proto(model_of("y = MatMul(x, w)")), level=LEVEL)
        search = replace(search_of(scope), cost=cost_model.cost_model_of(scope))
        taken = [item.signature is not None for item in grown(search, ANCHOR)]
        assert taken == ([True] if is_taken or not is_here else [])
