"""Regions of products with weights in 4 bits on CUDA: what belongs to one, and what is left."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from ortkit.custom_ops.triton.gemm import nbits
from region_models import found_by, scope_of

from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.kernels.signature import RegionSignature
from ortkit.refusal import Refused

DEPTH, COLUMNS = 128, 2048
SHAPES = {
    "w": ((COLUMNS, DEPTH // 32, 16), np.uint8), "s": ((COLUMNS * DEPTH // 32,), np.float16),
    "z": ((COLUMNS * DEPTH // 64,), np.uint8), "b": ((COLUMNS,), np.float16),
    "i": ((DEPTH,), np.int32), "v": ((COLUMNS, DEPTH // 32, 16), np.uint8),
    "h": ((COLUMNS * DEPTH // 64,), np.float16), "c": ((DEPTH,), np.float16),
}  # fmt: skip


def judge(signature: RegionSignature) -> Refused | None:
    found = nbits.match(signature)
    return found if isinstance(found, Refused) else None


def found(
    body: str, operands: str = "x, w, s", bits: int = 4, rows: str = "n, m"
) -> list[Candidate]:
    """Return the candidates of a product `p` of x and a weight, with `body` behind it."""
    proto = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float16[{rows}, {DEPTH}] x, float16[{rows}, {COLUMNS}] r,
      float16[{COLUMNS * DEPTH // 32}] f, float16[{rows}, {DEPTH}] e, int32[b] lengths,
      float16[b, 2, p, {COLUMNS // 2}] k, int32 total) => (y) {{
      p = com.microsoft.MatMulNBits <K = {DEPTH}, N = {COLUMNS}, bits = {bits}, block_size = 32>
        ({operands})
      {body}
    }}""")
    for name, (shape, dtype) in SHAPES.items():
        array = np.ones((*shape[:-1], shape[-1] * bits // 4) if name in "wv" else shape, dtype)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return found_by(nbits.ANCHOR, scope_of(ir.from_proto(proto)), judge, CudaCostModel)


@pytest.mark.parametrize(
    ("body", "nodes"),
    [
        ("y = Identity(p)", 2),
        ("y = Add(p, r)", 2),
        ("q = Add(p, b)  y = Mul(q, r)", 3),
        ("q = com.microsoft.QuickGelu<alpha = 1.0>(p)  y = Mul(q, r)", 3),
        ("y = Softmax(p)", 1),
    ],
)
def test_what_follows_a_product(body: str, nodes: int) -> None:
    (one,) = found(body)
    assert one.signature is not None
    assert len(one.region.nodes) == nodes


@pytest.mark.parametrize(
    ("operands", "bits", "reason"),
    [
        ("x, w, s, , i", 4, "another order"),
        ("x, w, s", 8, "4 bits"),
        ("x, w, f", 4, "no constant"),
    ],
)
def test_what_is_left(operands: str, bits: int, reason: str) -> None:
    (one,) = found("y = Identity(p)", operands, bits)
    assert one.signature is None
    assert reason in one.reason


@pytest.mark.parametrize("rows", ["1, 9", "n, m", "1, 1"])
def test_zeros_and_a_bias(rows: str) -> None:
    (one,) = found("y = Add(p, r)", "x, w, s, z, , b", rows=rows)
    assert one.signature is not None
    assert {"z", "b"} <= {value.name for value in one.region.inputs}


@pytest.mark.parametrize(
    ("other", "is_pair"),
    [
        ("K = 128, N = 2048, bits = 4, block_size = 32> (x, v, s)", True),
        ("K = 128, N = 2048, bits = 4, block_size = 32> (x, v, s, z)", True),
        ("K = 128, N = 2048, bits = 4, block_size = 64> (x, v, h)", False),
        ("K = 128, N = 2048, bits = 4, block_size = 32> (a, v, s)", False),
        ("K = 128, N = 2048, bits = 4, block_size = 32> (x, v, f)", False),
    ],
)
def test_a_gated_pair(other: str, is_pair: bool) -> None:
    candidates = found(
        f"""a = Neg(x)
        g = com.microsoft.QuickGelu<alpha = 1.0>(p)
        q = com.microsoft.MatMulNBits <{other}
        y = Mul(g, q)"""
    )
    regions = [one for one in candidates if one.signature is not None]
    counts = [sum(node.op_type == "MatMulNBits" for node in one.region.nodes) for one in regions]
    assert counts[0] == (2 if is_pair else 1)
    if is_pair:
        assert len(regions) == 1
        assert {node.op_type for node in regions[0].region.nodes} >= {"QuickGelu", "Mul"}


@pytest.mark.parametrize(
    ("norm", "rows", "is_within"),
    [
        ("n, , , t = com.microsoft.SkipSimplifiedLayerNormalization (x, e, c)", "n, m", True),
        ("n, , , t = com.microsoft.SkipSimplifiedLayerNormalization (x, e, c)", "1, 1", True),
        ("n, , , t = com.microsoft.SkipSimplifiedLayerNormalization (x, e, c)", "1, 9", False),
        ("t = Identity (e)  n = SimplifiedLayerNormalization<axis = -1> (x, c)", "n, m", True),
        ("u = Neg (x)  n, , , t = com.microsoft.SkipSimplifiedLayerNormalization (u, e, c)",
         "n, m", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_pair", [False, True])
def test_norms_before(norm: str, rows: str, is_pair: bool, is_within: bool) -> None:
    """One row has its norm within the product, a prompt's has a launch before it."""
    other = """v1 = com.microsoft.MatMulNBits <K = 128, N = 2048, bits = 4, block_size = 32>
        (n, v, s)  y = Mul (q, v1)"""
    end = other if is_pair else "y = Identity (q)"
    candidates = found(
        f"""{norm}  q = com.microsoft.MatMulNBits <K = 128, N = 2048, bits = 4, block_size = 32>
        (n, w, s)  {end}  a, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = 2,
        kv_num_heads = 2> (p, p, p, k, k, lengths, total)  m1 = Softmax (t)""", rows=rows,
    )  # fmt: skip
    (one,) = (
        item for item in candidates
        if any(value.name in "yq" for value in item.region.outputs)
    )  # fmt: skip
    assert one.signature is not None
    assert any("Norm" in node.op_type for node in one.region.nodes) == is_within
    assert len(one.region.outputs) == 1 + (is_within and "Skip" in norm)
