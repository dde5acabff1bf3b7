"""Products of a decoder's rows on CUDA: a prompt's or one token's, known in a run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from ortkit.custom_ops.triton.gemm import gemv
from region_models import find, found_by, scope_of

from ortkit.fusion.decompose.pretranspose import PretransposeWeight
from ortkit.fusion.decompose.run import decomposed
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.past_keys import reads_caches
from ortkit.rewrite.scope import Scope

WIDTH = 256
ATTENTION = """a, k2, v2 = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 4>
    (p, p, p, k, v, lengths, total)"""
WITHOUT = """a = com.microsoft.MultiHeadAttention<num_heads = 4> (p, p, p)
    k2 = Identity (k)  v2 = Identity (v)"""


def scope(body: str, attention: str = ATTENTION, rows: str = "b, s") -> Scope:
    """A product `p` of x and w, attention `a` over it, and `body` that makes y."""
    sizes = ", ".join(str(WIDTH // 4) if size == "w" else size for size in ("b", "4", "p", "w"))
    proto = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float16[{rows}, {WIDTH}] x, float16[{rows}, {WIDTH}] r, float16[{sizes}] k,
       float16[{sizes}] v, int32[b] lengths, int32 total)
      => (float16[{rows}, {WIDTH}] y, float16[b, 4, t, {WIDTH // 4}] k2,
          float16[b, 4, t, {WIDTH // 4}] v2) {{
      p = MatMul (x, w)
      {attention}
      {body}
    }}""")
    rng = np.random.default_rng(2)
    for name, shape in {"w": (WIDTH, WIDTH), "o": (WIDTH, WIDTH), "c": (WIDTH,)}.items():
        array = rng.standard_normal(shape).astype(np.float16)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return scope_of(ir.from_proto(proto), kind="cuda", level="sm_90")


def nodes(of: Scope) -> list[int]:
    """How many nodes each region has, the Transpose of a matrix among them."""
    with decomposed([of], [PretransposeWeight()]):
        found = found_by(gemv.ANCHOR, of, cost=CudaCostModel)
        return [len(one.region.nodes) for one in found if one.signature is not None]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = MatMul (a, o)", [2, 2]),
        ("u = MatMul (a, o)  y = Add (u, c)", [2, 3]),
        # A prompt has tiles that add in place, one row another kernel for the same nodes.
        ("u = MatMul (a, o)  y = Add (u, r)", [2, 3]),
        ("u = MatMul (a, o)  t = Softmax (u)  y = Add (t, r)", [2, 2]),
    ],
)
def test_products_of_a_decoder(body: str, found: list[int]) -> None:
    of = scope(body)
    assert reads_caches(of)
    assert nodes(of) == found


def test_other_graphs_have_none() -> None:
    """Rows are many where no keys are from before, and known where sizes are fixed."""
    of = scope("y = MatMul (a, o)", WITHOUT)
    assert not reads_caches(of)
    assert nodes(of) == []
    assert nodes(scope("y = MatMul (a, o)", rows="1, 9")) == []


def norms(body: str, attention: str = ATTENTION, rows: str = "b, s") -> list[bool]:
    """Whether each norm of a graph is a region."""
    found = find(scope(body, attention, rows), cost=CudaCostModel)
    return [
        one.signature is not None
        for one in found
        if any("Norm" in node.op_type for node in one.region.nodes)
    ]


SKIP = "n = com.microsoft.SkipSimplifiedLayerNormalization (a, r, c)"


@pytest.mark.parametrize(
    ("attention", "rows", "reader", "is_taken"),
    [
        (ATTENTION, "b, s", "z = MatMul (n, o)", True),
        (ATTENTION, "b, s", "z = Trilu (n)", False),  # no product of ours follows
        (ATTENTION, "1, 9", "z = MatMul (n, o)", False),  # no token
        (WITHOUT, "b, s", "z = MatMul (n, o)", False),  # no decoder
    ],
)
def test_norms_between_products_of_a_token(
    attention: str, rows: str, reader: str, is_taken: bool
) -> None:
    """Launches of ours alone begin before the one before them has ended."""
    assert norms(f"{SKIP}  {reader}  y = Softmax (z)", attention, rows) == [is_taken]


SUM = "n, , , t = com.microsoft.SkipSimplifiedLayerNormalization (a, r, c)"
LAYER = "n, , , t = com.microsoft.SkipLayerNormalization (a, r, c, c, c)"
PLAIN = "n = SimplifiedLayerNormalization<axis = -1> (r, c)"


@pytest.mark.parametrize(
    ("norm", "behind", "is_within"),
    [
        (SUM, "z = MatMul (n, o)  s = Softmax (z)  y = Add (s, t)", True),
        (LAYER, "z = MatMul (n, o)  s = Softmax (z)  y = Add (s, t)", True),
        (SKIP, "z = MatMul (n, o)  y = Softmax (z)", True),
        (PLAIN, "z = MatMul (n, o)  y = Softmax (z)", True),
        # Each of two regions would compute it.
        (SUM, "z = MatMul (n, o)  e = MatMul (n, w)  u = Softmax (e)  s = Add (z, u)"
         "  y = Add (s, t)", False),
        # A norm of something pointwise is in one kernel with that.
        ("u = Neg (r)  n = SimplifiedLayerNormalization<axis = -1> (u, c)",
         "z = MatMul (n, o)  y = Softmax (z)", False),
        # What is read before the launch before has ended may not change.
        ("m = Neg (c)  n = SimplifiedLayerNormalization<axis = -1> (r, m)",
         "z = MatMul (n, o)  y = Softmax (z)", False),
        (SUM.replace("n, ,", "n, m,"), "z = MatMul (n, o)  u = Add (z, t)  y = Add (u, m)", False),
    ],
)  # fmt: skip
def test_norms_within_products(norm: str, behind: str, is_within: bool) -> None:
    """The sum before a norm is a result of the product's region where others read it."""
    of = scope(f"{norm}  {behind}")
    with decomposed([of], [PretransposeWeight()]):
        found = found_by(gemv.ANCHOR, of, cost=CudaCostModel)
        regions = [one.region for one in found if one.signature is not None]
    normed = [one for one in regions if any("Norm" in node.op_type for node in one.nodes)]
    assert len(normed) == is_within
    for one in normed:
        names = [value.name for value in one.outputs]
        assert names[:-1] == (["t"] if ", t =" in norm else [])


@pytest.mark.parametrize("rows", ["b, s", "1, 9"])
def test_norms_of_other_rows_stay(rows: str) -> None:
    of = scope(f"{SKIP}  z = MatMul (n, o)  y = Softmax (z)", WITHOUT, rows)
    assert nodes(of) == []
