"""int8 weights as uint8: the same products, by kernels of ONNX Runtime that never saturate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from ortkit.targets import cpu
from ortkit.verify import verifier as verifier_module
from ortkit.verify.lowered import exact_products
from ortkit.verify.lowered.exact_products import (
    make_products_exact,
    with_exact_products,
)
from ortkit.verify.verifier import Verifier

DEPTH, COLUMNS = 70, 33
BEFORE = "q = QuantizeLinear(x, s, z) "
#: Each gives the sums of `q - z` times `w` in float32, of one row of extreme numbers.
PRODUCTS = {
    "integers": "i = MatMulInteger(q, w, z) y = Cast<to = 1>(i)",
    "with a zero point": "i = MatMulInteger(q, w, z, v) y = Cast<to = 1>(i)",
    "computed weights": "t = Transpose(w) u = Transpose(t) i = MatMulInteger(q, u, z) "
    "y = Cast<to = 1>(i)",
    "to float": "y = com.microsoft.MatMulIntegerToFloat(q, w, s, s, z, v)",
    "rounded": "r = QLinearMatMul(q, s, z, w, s, v, f, z) y = DequantizeLinear(r, f, z)",
    "qdq": "a = DequantizeLinear(q, s, z) b = DequantizeLinear(w, s, v) y = MatMul(a, b)",
    "weights in float32": "a = DequantizeLinear(q, s, z) d = QuantizeLinear(wf, s, v) "
    "b = DequantizeLinear(d, s, v) y = MatMul(a, b)",
    "qdq, transposed": "a = DequantizeLinear(q, s, z) b = DequantizeLinear(wt, s) "
    "c = Transpose(b) y = MatMul(a, c)",
}


COMPUTED = ("computed weights", "weights in float32")


def weights(most: int = 127) -> np.ndarray:
    random = np.random.default_rng(3)
    numbers = random.integers(-most, most + 1, (DEPTH, COLUMNS)).astype(np.int8)
    if most == 127:
        numbers[:, 0], numbers[:, 1] = -128, 127
    return numbers


def model_of(body: str, most: int = 127) -> onnx.ModelProto:
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[n, {DEPTH}] x) => (float[n, {COLUMNS}] y) {{ {BEFORE} {body} }}""")
    w = weights(most)
    held = {
        "w": w, "wt": np.ascontiguousarray(w.T), "s": np.float32(1), "z": np.uint8(3),
        "v": np.int8(0), "f": np.float32(8192),
        "wf": w.astype(np.float32),
    }  # fmt: skip
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(data), name)
        for name, data in held.items()
        if name in read
    )
    return model


def rows() -> np.ndarray:
    """All 255, all 0, and drawn ones."""
    drawn = np.random.default_rng(5).integers(0, 256, (3, DEPTH))
    return np.stack([np.full(DEPTH, 255), np.zeros(DEPTH), *drawn]).astype(np.float32) - 3


def run(model: ir.Model) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": rows()})[0]


def expected(name: str, most: int = 127) -> np.ndarray:
    """The exact integers."""
    sums = rows().astype(np.int64) @ weights(most).astype(np.int64)
    if name != "rounded":
        return sums.astype(np.float32)
    return (np.clip(np.rint(sums / 8192) + 3, 0, 255) - 3).astype(np.float32) * 8192


@pytest.fixture
def saturating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_products, "saturates_products", lambda: True)


def int8_constants(model: ir.Model) -> set[str]:
    """Names of int8 weights that something reads."""
    held = model.graph.initializers.values()
    return {v.name or "" for v in held if v.dtype == ir.DataType.INT8 and v.uses() and v.shape}


@pytest.mark.usefixtures("saturating")
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_same_sums_without_int8(name: str) -> None:
    model = ir.from_proto(model_of(PRODUCTS[name]))
    before = int8_constants(model)
    made = with_exact_products(model)
    assert int8_constants(model) == before
    np.testing.assert_array_equal(run(made), expected(name))
    if name not in COMPUTED:
        assert not int8_constants(made)


@pytest.mark.usefixtures("saturating")
@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_of_seven_bits_stay(name: str) -> None:
    model = ir.from_proto(model_of(PRODUCTS[name], most=64))
    if name not in COMPUTED:
        assert with_exact_products(model) is model
    np.testing.assert_array_equal(run(with_exact_products(model)), expected(name, most=64))


@pytest.mark.usefixtures("saturating")
def test_weights_that_are_not_named_stay() -> None:
    model = ir.from_proto(model_of(PRODUCTS["integers"]))
    assert make_products_exact(model, {"other"}) == frozenset()
    assert int8_constants(model) == {"w"}
    assert make_products_exact(model, {"w"}) == {"w"}


@pytest.mark.usefixtures("saturating")
def test_a_deployed_candidate_saturates_where_the_original_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the names are that the original's weights and other tensors have."""
    monkeypatch.setattr(verifier_module, "make_products_exact", _recorded(asked := []))
    original = model_of(PRODUCTS["integers"], most=64)
    for node in original.graph.node:
        node.input[:] = ["w/uint8" if name == "s" else name for name in node.input]
    next(each for each in original.graph.initializer if each.name == "s").name = "w/uint8"
    with Verifier(ir.from_proto(original)) as verifier:
        verifier.check(ir.from_proto(model_of(PRODUCTS["integers"])))
    assert asked == [None, frozenset()]


@pytest.mark.usefixtures("saturating")
def test_a_deployed_candidate_is_exact_where_the_original_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier_module, "make_products_exact", _recorded(asked := []))
    original = ir.from_proto(model_of(PRODUCTS["integers"]))
    with Verifier(original) as verifier:
        assert verifier.check(original).verdict == "yes"
    assert asked == [None, {"w"}]


@pytest.mark.usefixtures("saturating")
def test_it_is_so_on_the_original_s_picks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the original is the model whose products were made exact before."""
    monkeypatch.setattr(verifier_module, "make_products_exact", _recorded(asked := []))
    np.savez(tmp_path / "x.npz", x=np.array([0.1, 0.9, 0.2, 0.3, 0.9, 0.05], np.float32))
    original, candidate = (_picking(offset) for offset in (-1e-7, 1e-7))
    with Verifier(original, inputs=tmp_path / "x.npz") as verifier:
        found = verifier.check(candidate)
    assert "; on the original's picks: i" in found.reason
    assert asked == [None, {"w"}, None, {"w"}]


def _picking(offset: float) -> ir.Model:
    """Return products of rows that are picked by near-ties."""
    proto = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[6] x) => (float[3, {COLUMNS}] y) {{
          v = Add(x, o) t, i = TopK <axis = 0> (v, k) r = Gather(rows, i)
          q = QuantizeLinear(r, s, z) p = MatMulInteger(q, w, z) y = Cast <to = 1> (p)
        }}""")
    held = {
        "o": np.array([0, 0, 0, 0, offset, 0], np.float32), "k": np.array([3]),
        "rows": np.random.default_rng(7).integers(0, 256, (6, DEPTH)).astype(np.float32),
        "s": np.float32(1), "z": np.uint8(3), "w": weights(),
    }  # fmt: skip
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(data), name) for name, data in held.items()
    )
    return ir.from_proto(proto)


def _recorded(asked: list[Collection[str] | None]) -> Callable[..., frozenset[str]]:
    """Return `make_products_exact`, which notes the names that it is asked for."""

    def changed(model: ir.Model, names: Collection[str] | None = None) -> frozenset[str]:
        asked.append(names)
        return make_products_exact(model, names)

    return changed


@pytest.mark.usefixtures("saturating")
def test_products_of_two_signed_factors_stay() -> None:
    """ONNX Runtime's are exact: what makes uint8 of one is held to them."""
    text = PRODUCTS["rounded"].replace("(q, s, z,", "(k, s, v,")
    model = model_of("k = QuantizeLinear(x, s, v) " + text)
    found = ir.from_proto(model)
    assert with_exact_products(found) is found


def test_nothing_changes_with_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_products, "saturates_products", lambda: False)
    model = ir.from_proto(model_of(PRODUCTS["integers"]))
    assert with_exact_products(model) is model
    assert make_products_exact(model) == frozenset()


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.usefixtures("saturating")
def test_a_wrong_weight_is_still_found(name: str) -> None:
    original = model_of(PRODUCTS[name])
    candidate = onnx.ModelProto()
    candidate.CopyFrom(original)
    for tensor in candidate.graph.initializer:
        if tensor.name in ("w", "wt", "wf"):
            numbers = numpy_helper.to_array(tensor).copy()
            numbers[5, 7] = numbers[5, 7] // 2 + 50
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    with Verifier(ir.from_proto(original)) as verifier:
        assert verifier.check(ir.from_proto(original)).verdict == "yes"
        assert verifier.check(ir.from_proto(candidate)).verdict == "no"


@pytest.mark.parametrize(
    ("flags", "saturates"),
    [
        ("sse4_1 avx", False),
        ("sse4_1 avx avx2", True),
        ("avx2 avx_vnni", False),
        ("avx2 avx512f avx512bw", True),
        ("avx2 avx512f avx512_vnni", False),
        ("avx2 avx512f avx512_bf16 avx512_vnni", False),
    ],
)
def test_processors_by_their_flags(
    flags: str, saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_cpu_flags", lambda: frozenset(flags.split()))
    assert cpu.saturates_products() == saturates
    assert cpu.multiplies_bytes("native") != saturates
