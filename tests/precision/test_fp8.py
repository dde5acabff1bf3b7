"""Products in eight-bit floats: what matrices become, which are worth it, and the whole call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import ortkit
from ortkit.errors import UserError
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision import fp8, magnitudes
from ortkit.precision.building import Builder
from ortkit.precision.fp8 import Fp8Lowering, _gain, _read, rounded_rows
from ortkit.precision.fp8_matrix import quantize_fp8
from ortkit.precision.lowering import CpuRequest
from ortkit.precision.products import Product
from ortkit.rewrite.log import RewriteLog
from ortkit.verify.inputs import batch_rows
from ortkit.verify.kernels import check

WIDTH, INNER = 1024, 4096


def model_of(rows: tuple[int | str, ...], *, is_half: bool = True) -> onnx.ModelProto:
    """Return a norm, a product up with GELU, and one down with the sum."""
    rng = np.random.default_rng(6)
    dtype = np.float16 if is_half else np.float32
    kind = TensorProto.FLOAT16 if is_half else TensorProto.FLOAT
    held = [
        numpy_helper.from_array(array.astype(dtype), name)
        for name, array in {
            "g": 1 + rng.random(WIDTH),
            "u": rng.standard_normal((WIDTH, INNER)) / WIDTH**0.5,
            "d": rng.standard_normal((INNER, WIDTH)) / INNER**0.5,
        }.items()
    ]
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "u"], ["h"]),
        helper.make_node("Gelu", ["h"], ["i"]),
        helper.make_node("MatMul", ["i", "d"], ["j"]),
        helper.make_node("Add", ["j", "x"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, kind, (*rows, WIDTH)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def products_of(proto: onnx.ModelProto) -> tuple[Shapes, list[Product]]:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    shapes = Shapes.infer(model)
    read = [_read(model, shapes, node) for node in model.graph if node.op_type == "MatMul"]
    return shapes, [item for item in read if isinstance(item, Product)]


@pytest.mark.parametrize(
    ("rows", "readers", "gains"),
    [((1, 1), 1, [True, True]), ((2, 8), 1, [True, True]), ((4, 4096), 4, [True, True]),
     ((4, 4096), 1, [True, False]), (("n",), 4, [False, False])],
)  # fmt: skip
def test_which_products_gain(rows: tuple[int | str, ...], readers: int, gains: list[bool]) -> None:
    shapes, products = products_of(model_of(rows))
    found = [_gain(shapes, product, readers) for product in products]
    assert [not isinstance(item, str) for item in found] == gains, found


def test_products_in_float32_are_none() -> None:
    assert products_of(model_of((1, 1), is_half=False))[1] == []


def test_rows_keep_four_bits_whatever_their_size() -> None:
    model = ir.from_proto(
        helper.make_model(
            helper.make_graph(
                [], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT16, (4, 64))], []
            ),
            opset_imports=[helper.make_opsetid("", 20)], ir_version=10,
        )
    )  # fmt: skip
    build = Builder(model)
    made = rounded_rows(build, model.graph.inputs[0], ir.DataType.FLOAT16)
    model.graph.extend(build.take())
    made.shape = ir.Shape([4, 64])
    model.graph.outputs.append(made)
    x = np.random.default_rng(2).standard_normal((4, 64)) * [[1e-5], [1.0], [3e4 / 4], [0.0]]
    x = x.astype(np.float16)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    (got,) = session.run(None, {"x": x})
    wide, found = x.astype(np.float64), got.astype(np.float64)
    sizes = np.linalg.norm(wide, axis=1)
    assert (np.linalg.norm(found - wide, axis=1)[:3] <= 0.04 * sizes[:3]).all()
    assert not found[3].any()


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_half", [True, False], ids=["float16", "float32"])
def test_the_whole_call(is_half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Triton's interpreter does not come to an end of products as large as these.
    monkeypatch.setitem(check._INTERPRETED, "quick", (0.05, 1.0))  # type: ignore[arg-type]
    proto = model_of((1, 1), is_half=is_half)
    options = ortkit.OptimizeOptions(target="cuda", arch="sm_90", precision="fp8", samples=1)
    made = ortkit.optimize(proto, options)
    found = made.report.precision
    assert found is not None
    assert [(item.form, item.lowered) for item in found.nodes] == [("fp8-weights", True)] * 2
    assert found.error is not None
    assert 1e-3 < found.error < 0.1
    assert made.report.verification is not None
    assert made.report.verification.is_good
    assert (
        made.report.verification.verdict == "yes" or made.report.verification.lacks_hardware_only
    )
    kinds = Counter(region.kind for region in made.report.regions if region.emitted_as)
    assert kinds["product"] == 2
    held = [
        initializer.dtype
        for initializer in made.model.graph.initializers.values()
        if len(initializer.shape or ()) == 2
    ]
    assert held == [ir.DataType.FLOAT8E4M3FN] * 2
    assert not any(node.op_type == "MatMul" for node in made.model.graph)


@pytest.mark.slow  # tests of other types hold the budget; here kernels are compiled for 8 s
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_a_budget_returns_products() -> None:
    options = ortkit.OptimizeOptions(
        target="cuda", arch="sm_90", precision="fp8", samples=1, max_error=0.005
    )
    made = ortkit.optimize(model_of((1, 1)), options)
    found = made.report.precision
    assert found is not None
    assert found.error is not None
    assert found.error <= 0.005
    returned = [node.reason for node in found.nodes if not node.lowered]
    assert returned
    assert all("0.005" in item for item in returned)


@pytest.mark.parametrize(
    "given",
    [
        {"target": "cpu"}, {"target": "cuda", "kernels": "off"}, {"target": "cuda", "level": 1},
        {"target": "cuda", "precision_io": "convert"}, {"target": "cuda", "max_error": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked(given: dict[str, object]) -> None:
    with pytest.raises(UserError):
        ortkit.OptimizeOptions(precision="fp8", **given)  # type: ignore[arg-type]


def _batched(*, mixes: bool = False) -> onnx.ModelProto:
    """Return a chain of products on 16 rows of 8 of a batch, which may read other rows."""
    rng = np.random.default_rng(8)
    held = [
        numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float16), name)
        for name, shape in {"u": (64, 128), "d": (128, 64)}.items()
    ]
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["n"], axis=-1),
        helper.make_node("MatMul", ["n", "u"], ["h"]),
        helper.make_node("Softmax", ["h"], ["i"], axis=0 if mixes else -1),
        helper.make_node("MatMul", ["i", "d"], ["y"]),
    ]
    held.append(numpy_helper.from_array(np.ones(64, np.float16), "g"))
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, (16, 8, 64)) for n in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _lowering(path: Path, folder: Path, inputs: Path | None = None) -> Fp8Lowering:
    request = CpuRequest("fp8", None, "auto", None, inputs, "quick", {}, 1, "native")
    return Fp8Lowering(path, request, folder, lambda _: None)


def test_errors_are_measured_on_a_few_rows_where_all_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_rows, "_MOST_OPERATIONS", 0)
    path, worse = tmp_path / "m.onnx", tmp_path / "worse.onnx"
    proto = _batched()
    onnx.save(proto, path)
    found = _lowering(path, tmp_path / "p")
    found.lower(ir.from_proto(proto), RewriteLog())
    assert found.data is not None
    assert found.few is not None
    assert found.given == ()
    assert "2 of 16 rows: each is computed on its own" in found.data.text
    assert found.few.sets[0]["x"].shape == (2, 8, 64)
    assert found.measure(path, None) == 0.0
    scaled = numpy_helper.to_array(proto.graph.initializer[1]) * np.float16(1.25)
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(scaled, "d"))
    onnx.save(proto, worse)
    assert found.measure(worse, None) == pytest.approx(0.25, rel=0.02)


def test_rows_of_the_users_inputs_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_rows, "_MOST_OPERATIONS", 0)
    proto = _batched()
    onnx.save(proto, tmp_path / "m.onnx")
    x = np.random.default_rng(1).standard_normal((16, 8, 64)).astype(np.float16)
    np.savez(tmp_path / "in.npz", x=x)
    found = _lowering(tmp_path / "m.onnx", tmp_path / "p", tmp_path / "in.npz")
    found.lower(ir.from_proto(proto), RewriteLog())
    assert found.few is not None
    assert np.array_equal(found.few.sets[0]["x"], x[:2])
    assert "in.npz, 2 of 16 rows" in found.data.text  # type: ignore[union-attr]


def test_rows_that_are_mixed_are_all_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_rows, "_MOST_OPERATIONS", 0)
    proto = _batched(mixes=True)
    onnx.save(proto, tmp_path / "m.onnx")
    found = _lowering(tmp_path / "m.onnx", tmp_path / "p")
    found.lower(ir.from_proto(proto), RewriteLog())
    assert found.few is None
    assert found.given[0]["x"].shape == (16, 8, 64)
    onnx.save(_batched(), tmp_path / "plain.onnx")
    rows = _lowering(tmp_path / "plain.onnx", tmp_path / "q")
    rows.lower(ir.from_proto(_batched()), RewriteLog())
    # A candidate that mixes what the original does not is measured with all rows, and is off.
    assert rows.measure(tmp_path / "m.onnx", None) > 0.1
    assert rows.few is None
    assert any("errors were measured with all rows" in note for note in rows._notes)


def test_each_weight_is_rounded_once_and_measured_where_it_matters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes time in proportion to the weights: choosing and lowering a model."""
    rounded, measured = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()

    def counted(read: Callable[..., Any], counts: Counter[tuple[int, ...]]) -> Callable[..., Any]:
        def count(matrix: np.ndarray, *others: Any, **named: Any) -> Any:
            counts[matrix.shape] += 1
            return read(matrix, *others, **named)

        return count

    monkeypatch.setattr(fp8, "quantize_fp8", counted(quantize_fp8, rounded))
    monkeypatch.setattr(magnitudes, "_sums", counted(magnitudes._sums, measured))
    proto, path = model_of((1, 1)), tmp_path / "m.onnx"
    onnx.save(proto, path)
    found = _lowering(path, tmp_path / "p")
    found.lower(ir.from_proto(proto), RewriteLog())
    assert rounded == {(WIDTH, INNER): 1, (INNER, WIDTH): 1}
    # Nothing reads how large the sum behind the last product is.
    assert measured == {(WIDTH, INNER): 1}
    assert not found._matrices, "they would take memory for as long as the model is optimized"
    # Another attempt has another model, whose weights may differ.
    found.lower(ir.from_proto(proto), RewriteLog())
    assert rounded == {(WIDTH, INNER): 2, (INNER, WIDTH): 2}
    assert measured == {(WIDTH, INNER): 1}
