"""Rotations are apart from GroupQueryAttention where a kernel takes the rest, and only there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
import pytest
from ortkit.custom_ops.triton.attention.attention import ANCHOR
from region_models import found_by, scope_of, search_of
from test_cuda_attention import run

from ortkit.fusion.attention.cuda import attention_region
from ortkit.fusion.decompose.rotary import DecomposeRotary
from ortkit.fusion.decompose.run import decomposed
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text
from ortkit.rewrite.scope import Scope

#: 7 positions of 4 heads of 16 that share 2 of keys.
SPLIT = "w = Constant<value = int64[3] {{{}}}> ()  {} = Split<axis = {}> (p, w)"
GQA = (
    "l = Constant<value = int32[1] {{6}}> ()  t = Constant<value = int32 {{7}}> ()  "
    "y{} = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1{}> "
    "(q, k, v, , , l, t, c, s{})"
)
ROWS = "T[1, 7, 64] q, T[1, 7, 32] k, T[1, 7, 32] v, T[7, 8] c, T[7, 8] s"
PACKED = "T[1, 7, 128] p, T[7, 8] c, T[7, 8] s"
PARTS = SPLIT.format("64, 32, 32", "q, k, v", 2)
PLAIN = GQA.format("", "", "")
FORMS = {
    "operands": (ROWS, PLAIN, 2, 3),
    "parts of one": (PACKED, f"{PARTS}  {PLAIN}", 1, 2),
    "parts, the last axis": (
        PACKED, f"{SPLIT.format('64, 32, 32', 'q, k, v', -1)}  {PLAIN}", 1, 2,
    ),
    "values first": (PACKED, f"{SPLIT.format('32, 64, 32', 'v, q, k', 2)}  {PLAIN}", 1, 2),
    "keys first": (PACKED, f"{SPLIT.format('32, 64, 32', 'k, q, v', 2)}  {PLAIN}", 2, 3),
    "values apart": (
        "T[1, 7, 96] p, T[1, 7, 32] v, T[7, 8] c, T[7, 8] s",
        f"{SPLIT.format('64, 32', 'q, k', 2).replace('int64[3]', 'int64[2]')}  {PLAIN}", 1, 2,
    ),
    "a cap and a window": (
        ROWS, GQA.format("", ", softcap = 2.0, local_window_size = 3", ""), 2, 3,
    ),
    "something between": (
        PACKED,
        f"{SPLIT.format('64, 32, 32', 'a, b, v', 2)}  q = Neg (a)  k = Neg (b)  {PLAIN}", 2, 3,
    ),
    "what else it makes": (ROWS, GQA.format(", g, h", "", ""), 2, 3),
}  # fmt: skip
LEFT = {
    "pairs": (ROWS, GQA.format("", ", rotary_interleaved = 1", "")),
    "places": (f"{ROWS}, int64[1, 7] i", GQA.format("", "", ", i")),
    "a part of each head": (ROWS.replace("[7, 8]", "[7, 4]"), PLAIN),
    "longer tables": (ROWS.replace("[7, 8]", "[9, 8]"), PLAIN),
    "tables of unknown length": (ROWS.replace("[7, 8]", "[m, 8]"), PLAIN),
    "no rotation": (ROWS, PLAIN.replace("do_rotary = 1", "do_rotary = 0").replace(", c, s", "")),
}  # fmt: skip


def text_of(inputs: str, body: str, dtype: str) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    inputs = inputs.replace("T[", f"{dtype}[")
    return ir.to_proto(from_text(f"{head} g ({inputs}) => ({dtype}[1, 7, 64] y) {{ {body} }}"))


def model_of(inputs: str, body: str, dtype: str = "float16") -> onnx.ModelProto:
    return text_of(inputs, body.replace("{{", "{").replace("}}", "}"), dtype)


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float16)
    angles = rng.random((7, 8)) * 6
    return feeds | {"c": np.cos(angles).astype(np.float16), "s": np.sin(angles).astype(np.float16)}


def lower_attention(scope: Scope) -> None:
    (one,) = found_by(ANCHOR, scope)
    assert one.signature is not None, one.reason
    assert lower_region(scope, one.region, one.signature, {})


@pytest.mark.parametrize("name", FORMS)
def test_apart_they_compute_the_same(name: str) -> None:
    inputs, body, rotations, operands = FORMS[name]
    model = model_of(inputs, body)
    scope = scope_of(ir.from_proto(model))

    def takes(of: Scope, node: ir.Node) -> bool:
        return attention_region(search_of(of), node).signature is not None

    with decomposed([scope], [DecomposeRotary(takes)]):
        lower_attention(scope)
    fused = ir.to_proto(scope.model)
    onnx.checker.check_model(fused)
    kinds = [node.op_type for node in fused.graph.node]
    assert "GroupQueryAttention" not in kinds
    assert kinds.count("Concat") == rotations
    # Of parts the attention reads the whole itself: only what is rotated apart is split.
    is_split = name in ("keys first", "something between")
    assert kinds.count("Split") == rotations + is_split
    (node,) = [item for item in fused.graph.node if item.domain == "ortkit.fused"]
    assert len(node.input) == operands
    feeds = feeds_of(model)
    wide = {key: feed.astype(np.float32) for key, feed in feeds.items()}
    wanted = run(model_of(inputs, body, "float"), wide)
    np.testing.assert_allclose(run(fused, feeds), wanted, atol=4e-3)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("is_wanted", [False, True])
def test_what_no_region_takes_is_as_it_was(name: str, is_wanted: bool) -> None:
    scope = scope_of(ir.from_proto(model_of(*FORMS[name][:2])))
    before = ir.to_proto(scope.model)
    with decomposed([scope], [DecomposeRotary(lambda *_: is_wanted)]):
        inside = [node.op_type for node in scope.model.graph]
        assert ("Sub" in inside) == is_wanted
    assert ir.to_proto(scope.model) == before


@pytest.mark.parametrize("opset", [12, 13])
def test_split_has_an_input_for_its_sizes_since_opset_13(opset: int) -> None:
    model = model_of(*FORMS["operands"][:2])
    model.opset_import[0].version = opset
    scope = scope_of(ir.from_proto(model))
    with decomposed([scope], [DecomposeRotary(lambda *_: True)]):
        kinds = [node.op_type for node in scope.model.graph]
    assert ("Split" in kinds) == (opset >= 13)


@pytest.mark.parametrize("name", LEFT)
def test_other_rotations_are_left(name: str) -> None:
    scope = scope_of(ir.from_proto(model_of(*LEFT[name])))
    before = ir.to_proto(scope.model)
    with decomposed([scope], [DecomposeRotary(lambda *_: True)]):
        assert ir.to_proto(scope.model) == before
