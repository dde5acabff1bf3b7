"""Products become regions on CUDA, with the norm before and the sum behind that are theirs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from ortkit.custom_ops.triton.gemm import gemv, split_k
from region_models import accept, found_by, scope_of

from ortkit.fusion.decompose.pretranspose import PretransposeWeight
from ortkit.fusion.decompose.run import decomposed
from ortkit.fusion.decompose.skip_norm import DecomposeSkipNorm
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text
from ortkit.rewrite.scope import Scope

HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
DEPTH, COLUMNS = 16, 24
#: Constants of bodies: matrices w, v [16, 24], o [24, 16], rows b [24], c and g [16].
SHAPES = {"w": (DEPTH, COLUMNS), "v": (DEPTH, COLUMNS), "o": (COLUMNS, DEPTH), "b": (COLUMNS,),
          "c": (DEPTH,), "g": (DEPTH,)}  # fmt: skip
GATED = """n = RMSNormalization<axis = -1> (x, g)  u = MatMul (n, w)  t = MatMul (n, v)
    s = com.microsoft.QuickGelu<alpha = 1.0> (u)  y = Mul (s, t)"""
SKIP = """u = MatMul (h, o)
    y, , , z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001> (r, u, g, c)"""
#: A body, and the number of nodes of each region.
TAKEN = {
    "a product": ("y = MatMul (x, w)", [1]),
    "bias and GELU": ("u = MatMul (x, w)  t = Add (u, b)  y = Gelu (t)", [3]),
    "gated rows with a norm": (GATED, [5]),
    "a norm that something else reads": (
        "n = RMSNormalization<axis = -1> (x, g)  y = MatMul (n, w)  z = Relu (n)", [1]
    ),
    "two readers": ("u = MatMul (x, w)  y = Relu (u)  z = Tanh (u)", [1]),
    "a square": ("u = MatMul (x, w)  t = Relu (u)  y = Mul (t, t)", [3]),
    "two products after each other": (
        "u = MatMul (x, w)  t = Relu (u)  s = MatMul (t, o)  y = Add (s, x)", [2, 2]
    ),
    "biases on both sides": (
        "u = MatMul (x, w)  t = MatMul (x, v)  s = Add (u, b)  a = Sigmoid (s)  d = Add (t, b)"
        "  y = Mul (a, d)", [6],
    ),
}  # fmt: skip


def model_of(body: str, types: str = "float16") -> onnx.ModelProto:
    """`y`, and `z` if the body makes it, by a body; h and r are inputs as x is."""
    rng = np.random.default_rng(5)
    inputs = [f"{types}[1, {COLUMNS if name == 'h' else DEPTH}] {name}" for name in "xhr"
              if f"({name}" in body or f" {name})" in body]  # fmt: skip
    outputs = [name for name in "yz" if f"{name} =" in body]
    held = []
    for name, shape in SHAPES.items():
        if f"{name})" not in body and f"{name}, " not in body:
            continue
        array = (rng.integers(-64, 64, shape) / 256).astype(np.float16)
        bits = ", ".join(map(str, array.view(np.uint16).flat))
        held.append(f"{types}[{', '.join(map(str, shape))}] {name} = {{{bits}}}")
    results = [f"{types}[1, n_{name}] {name}" for name in outputs]
    return ir.to_proto(
        from_text(f"{HEAD} g ({', '.join(inputs)}) => ({', '.join(results)}) "
                  f"<{', '.join(held)}> {{ {body} }}")
    )  # fmt: skip


def found_in(scope: Scope) -> list[Candidate]:
    return found_by(gemv.ANCHOR, scope)


def lowered(
    proto: onnx.ModelProto, *, is_transposed: bool = False
) -> tuple[onnx.ModelProto, list[int]]:
    """Return the model with its regions as nodes, and of how many nodes each was."""
    scope = scope_of(ir.from_proto(proto))
    sizes, replaced = [], dict[ir.Value, ir.Value]()
    steps = DecomposeSkipNorm(lambda *_: True), PretransposeWeight(lambda *_: is_transposed)
    with decomposed([scope], steps):
        for one in found_in(scope):
            assert one.signature is not None, one.reason
            sizes.append(len(one.region.nodes))
            assert lower_region(scope, one.region, one.signature, replaced)
    return ir.to_proto(scope.model), sizes


def outputs_of(proto: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        item.name: (rng.standard_normal(item.shape) / 2).astype(np.float16)
        for item in session.get_inputs()
    }
    return list(session.run(None, feeds))


@pytest.mark.parametrize("name", TAKEN)
def test_regions_compute_the_same(name: str) -> None:
    body, sizes = TAKEN[name]
    before = model_of(body)
    after, found = lowered(before)
    assert found == sizes
    for one, other in zip(outputs_of(before), outputs_of(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", TAKEN)
def test_matrices_are_turned(name: str) -> None:
    body, sizes = TAKEN[name]
    before = model_of(body)
    after, found = lowered(before, is_transposed=True)
    products = body.count("MatMul")
    assert sum(found) == sum(sizes) + products
    held = {item.name for item in after.graph.initializer if len(item.dims) == 2}
    read = {name for node in after.graph.node for name in node.input}
    assert held <= read
    assert sum("/turned" in name for name in held) == products
    for one, other in zip(outputs_of(before), outputs_of(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


def test_a_matrix_of_a_product_that_nothing_took_is_as_it_was() -> None:
    before = model_of(GATED)
    scope = scope_of(ir.from_proto(before))
    with decomposed([scope], [PretransposeWeight(lambda *_: True)]):
        kinds = [node.op_type for node in scope.model.graph]
        assert kinds.count("Transpose") == 2
    assert ir.to_proto(scope.model) == before


def test_products_of_one_row_pay_and_their_matrices_are_turned() -> None:
    rng = np.random.default_rng(1)
    bits = ", ".join(map(str, rng.integers(0, 9999, 64 * 48)))
    body = f"<float16[64, 48] w = {{{bits}}}> {{ u = MatMul (x, w)  y = Relu (u) }}"
    scope = scope_of(from_text(f"{HEAD} g (float16[1, 64] x) => (float16[1, 48] y) {body}"))
    with decomposed([scope], [PretransposeWeight()]):
        (one,) = found_by(gemv.ANCHOR, scope, accept, CudaCostModel)
        assert one.signature is not None
        assert [spec.shape for spec in one.signature.inputs] == [(48, 64), (1, 64)]


def test_a_skip_norm_gives_its_sum_away() -> None:
    before = model_of(SKIP)
    after, found = lowered(before)
    assert found == [3]
    kinds = [node.op_type for node in after.graph.node]
    assert "SkipSimplifiedLayerNormalization" not in kinds
    assert "SimplifiedLayerNormalization" in kinds
    for one, other in zip(outputs_of(before), outputs_of(after), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("body", [SKIP, SKIP.replace(", , , z", "")])
def test_a_skip_norm_that_nothing_took_is_there_again(body: str) -> None:
    before = model_of(body)
    scope = scope_of(ir.from_proto(before))
    with decomposed([scope], [DecomposeSkipNorm(lambda *_: True)]):
        assert [node.op_type for node in scope.model.graph].count("Add") == 2
    assert ir.to_proto(scope.model) == before


@pytest.mark.parametrize(
    "body",
    [
        "u = Relu (h)  y = MatMul (x, u)",
        "u = MatMul (o, w)  z = Relu (u)  y = Neg (h)",
    ],
)
def test_what_is_no_product_of_rows(body: str) -> None:
    assert not found_in(scope_of(ir.from_proto(model_of(body))))


@pytest.mark.parametrize("shape", ["1, k", "n, k", "n, 1, k", "n, 16", "0, 16", "k"])
def test_sizes_that_are_not_known(shape: str) -> None:
    zeros = ", ".join(["0"] * 384)
    body = f"<float16[16, 24] w = {{{zeros}}}> {{ u = MatMul (x, w)  y = Relu (u) }}"
    scope = scope_of(from_text(f"{HEAD} g (float16[{shape}] x) => (float16[m] y) {body}"))
    with decomposed([scope], [DecomposeSkipNorm(), PretransposeWeight()]):
        found = found_by(gemv.ANCHOR, scope, accept, CudaCostModel)
        assert not found_by(split_k.ANCHOR, scope, accept, CudaCostModel)
    assert all(item.signature is None or shape == "1, k" for item in found)


def many_rows(shape: str, body: str, depth: int, columns: int) -> Scope:
    """A body of x [shape, depth], matrices w and v of zeros, and rows b."""
    held = {"w": (depth, columns), "v": (depth, columns), "b": (columns,)}
    given = ", ".join(
        f"float16[{', '.join(map(str, size))}] {name}" for name, size in held.items()
    )
    rank = ", ".join(f"m{place}" for place in range(shape.count(",") + 2))
    proto = ir.to_proto(
        from_text(
            f"{HEAD} g (float16[{shape}, {depth}] x, {given}) => (float16[{rank}] y) {{ {body} }}"
        )
    )
    del proto.graph.input[1:]
    for name, size in held.items():
        zeros = np.zeros(size, np.float16)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(zeros, name))
    return scope_of(ir.from_proto(proto))


ACTED = "u = MatMul (x, w)  t = Add (u, b)  y = Gelu (t)"
GATED_MANY = """u = MatMul (x, w)  t = MatMul (x, v)  s = com.microsoft.QuickGelu<alpha = 1.0> (u)
    y = Mul (s, t)"""


@pytest.mark.parametrize(
    ("shape", "body", "depth", "columns", "is_taken"),
    [
        ("512", ACTED, 768, 3072, True),
        ("8, 512", ACTED, 768, 3072, True),
        ("1, 197", ACTED, 768, 3072, True),
        ("n, 197", ACTED, 768, 3072, True),
        ("512", GATED_MANY, 2048, 5632, True),
        # Three rounds of tiles, of which the last is a third full.
        ("8, 197", ACTED, 768, 3072, False),
        # Few columns and much depth: cuBLAS gives parts of it to blocks of their own.
        ("512", ACTED, 3072, 768, False),
        ("512", "y = MatMul (x, w)", 768, 3072, False),
        # Deep ones, a tile for each multiprocessor.
        ("512", "y = MatMul (x, w)", 2048, 3072, True),
        ("4, 128", "y = MatMul (x, w)", 5632, 2048, True),
        ("128", "y = MatMul (x, w)", 5632, 2048, False),
        # Reading the matrix is all that counts.
        ("128", "y = MatMul (x, w)", 2048, 12288, False),
        ("n", "y = MatMul (x, w)", 2048, 3072, False),
        # ONNX Runtime's Gemm has the bias.
        ("512", "u = MatMul (x, w)  y = Add (u, b)", 768, 3072, False),
        ("20", ACTED, 768, 3072, False),
        ("512", ACTED, 128, 512, False),
    ],
)
def test_many_rows_where_they_are_faster(
    shape: str, body: str, depth: int, columns: int, is_taken: bool
) -> None:
    scope = many_rows(shape, body, depth, columns)
    with decomposed([scope], [DecomposeSkipNorm(), PretransposeWeight()]):
        found = found_by(gemv.ANCHOR, scope, accept, CudaCostModel)
        assert not found_by(split_k.ANCHOR, scope, accept, CudaCostModel)
    taken = [item for item in found if item.signature is not None]
    assert len(taken) == is_taken
    for one in taken:
        assert one.region.kind == "product"
        matrices = [spec.shape for spec in one.signature.inputs if len(spec.shape) == 2]
        assert (depth, columns) in matrices
