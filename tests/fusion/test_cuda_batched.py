"""Products of many matrices, and of computed ones, become regions on CUDA."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from ortkit.custom_ops.triton.gemm.gemv import BATCHED
from region_models import accept, found_by, scope_of

from ortkit.fusion.gemm import cuda_batched
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text
from ortkit.kernels.triton.generate import sources_of
from ortkit.refusal import Refused

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
#: Constants: experts' matrices w, v [3, 16, 24] and o [3, 24, 16], rows b [3, 1, 24] and c [24],
#: a matrix m [16, 24].
SHAPES = {"w": (3, 16, 24), "v": (3, 16, 24), "o": (3, 24, 16), "b": (3, 1, 24), "c": (24,),
          "m": (16, 24)}  # fmt: skip
ACTED = "u = MatMul (x, r)  t = Add (u, b)  y = Gelu (t)"
GATED = """u = MatMul (x, r)  t = MatMul (x, q)  s = com.microsoft.QuickGelu<alpha = 1.0> (u)
    y = Mul (s, t)"""
#: A body, the shapes of its inputs, and the number of nodes of each region.
TAKEN = {
    "experts": ("u = MatMul (x, w)  t = Add (u, b)  y = Gelu (t)", {"x": "3, 5, 16"}, [3]),
    "experts of the same rows": (
        "u = MatMul (x, w)  t = Add (u, b)  y = Relu (t)", {"x": "1, n, 16"}, [3]
    ),
    "gated experts and back": (
        "u = MatMul (x, w)  t = MatMul (x, v)  s = com.microsoft.QuickGelu<alpha = 1.0> (u)"
        "  d = Mul (s, t)  e = MatMul (d, o)  y = Mul (e, r)",
        {"x": "1, 5, 16", "r": "3, 5, 16"}, [4, 2],
    ),
    "similarities": (
        "T = Transpose<perm = [1, 0]> (r)  u = MatMul (x, T)  y = Mul (u, k)",
        {"x": "4, 16", "r": "6, 16", "k": "4, 6"}, [3],
    ),
    "of columns": (
        "T = Transpose<perm = [0, 2, 1]> (x)  u = MatMul (T, r)  y = Tanh (u)",
        {"x": "2, 5, 16", "r": "2, 5, 24"}, [3],
    ),
    "masks": ("u = MatMul (x, r)  y = Sigmoid (u)", {"x": "2, 5, 16", "r": "2, 16, 40"}, [2]),
    "nothing behind is left to be judged by its time": (
        "y = MatMul (x, r)", {"x": "2, 5, 16", "r": "2, 16, 40"}, [1]
    ),
    "a factor that something else reads is not turned": (
        "T = Transpose<perm = [0, 2, 1]> (x)  u = MatMul (T, r)  y = Tanh (u)  z = Relu (T)",
        {"x": "2, 5, 16", "r": "2, 5, 24"}, [2],
    ),
    "a turned matrix that two products read": (
        "T = Transpose<perm = [0, 2, 1]> (r)  u = MatMul (x, T)  y = Tanh (u)  z = MatMul (k, T)",
        {"x": "2, 5, 16", "r": "2, 24, 16", "k": "2, 5, 16"}, [2, 1],
    ),
    "axes that are turned in another way": (
        "T = Transpose<perm = [1, 0, 2]> (x)  u = MatMul (T, r)  y = Tanh (u)",
        {"x": "5, 2, 16", "r": "2, 16, 24"}, [2],
    ),
    "all axes turned round": (
        "T = Transpose (x)  u = MatMul (T, r)  y = Tanh (u)",
        {"x": "16, 5, 2", "r": "2, 16, 24"}, [],
    ),
    "a constant matrix is another rule's": (
        "u = MatMul (x, m)  y = Relu (u)", {"x": "2, 5, 16"}, []
    ),
    "rows of other lengths": (
        "u = MatMul (x, r)  y = Add (u, k)", {"x": "2, 5, 16", "r": "2, 16, 24", "k": "5, 1"}, [1]
    ),
}  # fmt: skip


def model_of(body: str, inputs: dict[str, str], types: str = "float16") -> onnx.ModelProto:
    """`y`, and `z` if the body makes it, by a body."""
    rng = np.random.default_rng(5)
    given = ", ".join(f"{types}[{shape}] {name}" for name, shape in inputs.items())
    held = []
    for name, shape in SHAPES.items():
        if f"{name})" not in body and f"{name}, " not in body:
            continue
        array = (rng.integers(-64, 64, shape) / 256).astype(np.float16)
        bits = ", ".join(map(str, array.view(np.uint16).flat))
        held.append(f"{types}[{', '.join(map(str, shape))}] {name} = {{{bits}}}")
    results = [f"{types}[] {name}" for name in "yz" if f" {name} =" in f" {body}"]
    proto = ir.to_proto(
        from_text(f"{HEAD} g ({given}) => ({', '.join(results)}) <{', '.join(held)}> {{ {body} }}")
    )
    for one in proto.graph.output:
        one.type.tensor_type.ClearField("shape")
    return proto


def outputs_of(proto: onnx.ModelProto) -> Sequence[np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {}
    for one in session.get_inputs():
        shape = [7 if isinstance(size, str) else size for size in one.shape]
        feeds[one.name] = (rng.standard_normal(shape) / 2).astype(np.float16)
    return list(session.run(None, feeds))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "body", "count", "is_taken"),
    [
        ("8, 512", 768, 3072, ACTED, "8", True),
        ("1, 512", 768, 3072, ACTED, "8", True),
        ("16, 512", 128, 128, ACTED, "16", True),
        ("8, 104", 256, 4096, "u = MatMul (x, r)  y = Sigmoid (u)", "8", True),
        ("n, 104", 256, 4096, "u = MatMul (x, r)  y = Sigmoid (u)", "n", True),
        ("8, 512", 1024, 2816, GATED, "8", True),
        # Reading the matrices is all that counts.
        ("16, 64", 1024, 2816, GATED, "16", False),
        ("8, 512", 3072, 768, ACTED, "8", False),
        ("8, 512", 768, 3072, "y = MatMul (x, r)", "8", False),
        ("8, 1", 768, 3072, ACTED, "8", False),
        ("8, 512", 32, 512, ACTED, "8", False),
    ],
)
def test_it_is_done_where_it_is_faster(
    rows: str, depth: int, columns: int, body: str, count: str, is_taken: bool
) -> None:
    given = (
        f"float16[{rows}, {depth}] x, float16[{count}, {depth}, {columns}] r, "
        f"float16[{count}, {depth}, {columns}] q, float16[{count}, 1, {columns}] b"
    )
    scope = scope_of(from_text(f"{HEAD} g ({given}) => (float16[k, l, m] y) {{ {body} }}"))
    found = found_by(BATCHED, scope, accept, CudaCostModel)
    assert sum(item.signature is not None for item in found) == is_taken


@pytest.mark.parametrize(
    ("rows", "turn", "is_taken"),
    [("n", "r", False), ("2, n", "r", False), ("4096", "r", True), ("n", "", True),
     ("4096", "x", True)],
)  # fmt: skip
def test_a_computed_matrix_that_one_row_would_read_too_early_is_left(
    rows: str, turn: str, is_taken: bool
) -> None:
    """Kernels of one row read a matrix [columns, depth] before the launch before has ended."""
    x = "256, 4096" if turn == "x" else f"{rows}, 256"
    r = "4096, 256" if turn == "r" else "256, 4096"
    turned = "" if not turn else f"T = Transpose<perm = [1, 0]> ({turn})"
    factors = {"r": "x, T", "x": "T, r", "": "x, r"}[turn]
    scope = scope_of(from_text(
        f"{HEAD} g (float16[{x}] x, float16[{r}] c) => (float16[k, l] y) "
        f"{{ r = Relu (c)  {turned}  u = MatMul ({factors})  y = Sigmoid (u) }}"
    ))  # fmt: skip
    found = [one for one in found_by(BATCHED, scope, accept, CudaCostModel) if one.signature]
    assert bool(found) == is_taken
    for one in found:
        assert one.signature is not None
        sources = sources_of(one.signature)
        assert not isinstance(sources, Refused)
        assert not any(step.early_text for source in sources for step in source.steps)


def taken_for_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_batched, "predict", lambda *_: Prediction(9e3, 1e3))


@pytest.mark.parametrize("name", TAKEN)
def test_regions_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body, inputs, sizes = TAKEN[name]
    taken_for_fast(monkeypatch)
    before = model_of(body, inputs)
    scope = scope_of(ir.from_proto(before))
    found, replaced = [], dict[ir.Value, ir.Value]()
    for one in found_by(BATCHED, scope):
        assert one.signature is not None, one.reason
        found.append(len(one.region.nodes))
        assert one.region.kind == "product"
        assert lower_region(scope, one.region, one.signature, replaced)
    assert found == sizes
    after = ir.to_proto(scope.model)
    for one_output, other in zip(outputs_of(before), outputs_of(after), strict=True):
        np.testing.assert_allclose(one_output, other, rtol=2e-3, atol=2e-3)
