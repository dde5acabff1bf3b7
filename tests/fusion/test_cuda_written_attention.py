"""Attention that a kernel computes on CUDA and no op is a node while regions are looked for."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from ortkit.custom_ops.triton.attention.attention import ANCHOR
from region_models import accept, found_by, run, scope_of, search_of

from ortkit.fusion.attention.cuda import attention_region
from ortkit.fusion.decompose.attention import ComposeAttention
from ortkit.fusion.decompose.run import decomposed
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text, to_text
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.generate import sources_of
from ortkit.passes.fuse_attention import FuseAttention
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: 4 heads of 16 over 9 positions, keys and values of 2. Numbers are the bits of 0.25, 2 and -inf.
ROWS = "float16[2, 9, 64] q, float16[2, 9, 32] k, float16[2, 9, 32] v"
HEADS = """
  sq = Constant<value_ints = [0, 0, 4, 16]> ()  sk = Constant<value_ints = [0, 0, 2, 16]> ()
  se = Constant<value_ints = [2, 2, 2, 9, 16]> ()  sh = Constant<value_ints = [2, 4, 9, 16]> ()
  sy = Constant<value_ints = [0, 0, 64]> ()  two = Constant<value_ints = [2]> ()
  q4 = Reshape (q, sq)  qh = Transpose<perm = [0, 2, 1, 3]> (q4)
  k4 = Reshape (k, sk)  kh = Transpose<perm = [0, 2, 1, 3]> (k4)
  v4 = Reshape (v, sk)  vh = Transpose<perm = [0, 2, 1, 3]> (v4)
  k5 = Unsqueeze (kh, two)  ke = Expand (k5, se)  kr = Reshape (ke, sh)
  v5 = Unsqueeze (vh, two)  ve = Expand (v5, se)  vr = Reshape (ve, sh)
  kt = Transpose<perm = [0, 1, 3, 2]> (kr)  s = MatMul (qh, kt)
  scale = Constant<value = float16 {13312}> ()  scaled = Mul (s, scale)
"""
CAP = """
  cap = Constant<value = float16 {16384}> ()  d = Div (scaled, cap)  t = Tanh (d)
  capped = Mul (t, cap)
"""
LOST = "lost = Constant<value = float16 {64512}> ()  zero = Constant<value = float16 {0}> ()"
END = "  o = MatMul (w, vr)  ot = Transpose<perm = [0, 2, 1, 3]> (o)  y = Reshape (ot, sy)"
GUARD = "  p = Softmax (m)  n = IsNaN (p)  w = Where (n, zero, p)"
FORMS = {
    "a cap and a mask": (
        ", float16[2, 1, 9, 9] a", CAP + "  m = Add (capped, a)  w = Softmax (m)"
    ),
    "a condition, nothing seen gives 0": (
        ", bool[2, 1, 9, 9] a", LOST + "  m = Where (a, scaled, lost)" + GUARD
    ),
    "numbers, nothing seen gives 0": (
        ", bool[2, 1, 9, 9] a",
        LOST + "  b = Where (a, zero, lost)  m = Add (scaled, b)" + GUARD,
    ),
    "the test in float32": (
        ", bool[2, 1, 9, 9] a",
        LOST + "  m = Where (a, scaled, lost)"
        + GUARD.replace("n = IsNaN (p)", "f = Cast<to = 1> (p)  n = IsNaN (f)"),
    ),
    "a softmax in float32": (
        ", float16[2, 1, 9, 9] a",
        CAP + "  m = Add (capped, a)  f = Cast<to = 1> (m)  g = Softmax (f)"
        "  w = Cast<to = 10> (g)",
    ),
}  # fmt: skip


def model_of(name: str) -> onnx.ModelProto:
    more, scores = FORMS[name]
    head = '<ir_version: 10, opset_import: ["" : 18]>'
    text = f"{head} g ({ROWS}{more}) => (float16[2, 9, 64] y) {{ {HEADS} {scores} {END} }}"
    return ir.to_proto(from_text(text))


def feeds_of(name: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"q": (2, 9, 64), "k": (2, 9, 32), "v": (2, 9, 32)}
    feeds = {key: random.standard_normal(each).astype(np.float16) for key, each in shapes.items()}
    kept = random.random((2, 1, 9, 9)) < 0.6
    is_bool = "bool" in FORMS[name][0]
    kept[1, 0, 4] = not is_bool
    added = np.where(kept, 0.5, -6e4).astype(np.float16)
    return {**feeds, "a": kept if is_bool else added}


def takes(scope: Scope, node: ir.Node) -> bool:
    return attention_region(search_of(scope, judge), node).signature is not None


def judge(signature: RegionSignature) -> Refused | None:
    found = sources_of(signature)
    return found if isinstance(found, Refused) else accept(signature)


def checked(scope: Scope) -> onnx.ModelProto:
    after = ir.to_proto(scope.model)
    onnx.checker.check_model(after, full_check=True)
    return after


@pytest.mark.parametrize("name", FORMS)
def test_a_region_computes_what_was_written(name: str) -> None:
    scope = scope_of(ir.from_proto(model_of(name)), kind="cuda")
    with decomposed([scope], [ComposeAttention(takes)]):
        (one,) = found_by(ANCHOR, scope, judge)
        assert one.signature is not None, one.reason
        assert set(one.region.inputs) <= {*scope.model.graph.inputs, one.region.inputs[-1]}
        assert lower_region(scope, one.region, one.signature, {})
    _is_function_of(scope, name)
    assert [hit.rule for hit in scope.log.hits] == ["written-attention", "attention"]


@pytest.mark.parametrize("name", ["a cap and a mask", "a softmax in float32"])
def test_what_cannot_be_undone_is_a_function(name: str) -> None:
    """Its mask is computed elsewhere since: the attention stays, with its body."""
    scope = scope_of(ir.from_proto(model_of(name)), kind="cuda")
    with decomposed([scope], [ComposeAttention(takes)]):
        (attention,) = (node for node in scope.root if node.op_type == "Attention")
        mask = attention.inputs[3]
        assert mask is not None
        maker = mask.producer()
        assert maker is not None
        scope.replace(mask, scope.insert(maker, maker.op_type, maker.inputs, name="other")[0])
    _is_function_of(scope, name)


def _is_function_of(scope: Scope, name: str) -> None:
    after = checked(scope)
    ops = [node.op_type for node in after.graph.node]
    assert not {"Softmax", "MatMul", "Attention"} & set(ops)
    assert sum(op.startswith("attention_") for op in ops) == 1
    feeds = feeds_of(name)
    (found,), (wanted,) = run(after, feeds), run(model_of(name), feeds)
    np.testing.assert_allclose(found, wanted, atol=4e-3)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", FORMS)
def test_what_no_region_took_is_as_it_was_written(name: str) -> None:
    scope = scope_of(ir.from_proto(model_of(name)), kind="cuda")
    before = ir.to_proto(scope.model)
    with decomposed([scope], [ComposeAttention(takes)]):
        assert [hit.rule for hit in scope.log.hits] == ["written-attention"]
    assert ir.to_proto(scope.model) == before
    assert not scope.log.hits


def test_it_is_refused_no_more_while_it_is_one_node() -> None:
    scope = scope_of(ir.from_proto(model_of("a cap and a mask")), kind="cuda")
    FuseAttention().run(scope)
    misses = dict(scope.log.misses)
    assert [miss.pass_name for miss in misses] == ["fuse-attention"]
    with decomposed([scope], [ComposeAttention(takes)]):
        assert not scope.log.misses
    assert scope.log.misses == misses


def test_float32_stays_as_it_was_written() -> None:
    text = to_text(ir.from_proto(model_of("a cap and a mask")))
    for half, single in (("{13312}", "{0.25}"), ("{16384}", "{2}"), ("float16", "float")):
        text = text.replace(half, single)
    scope = scope_of(from_text(text), kind="cuda")
    before = ir.to_proto(scope.model)
    with decomposed([scope], [ComposeAttention(lambda *_: True)]):
        assert ir.to_proto(scope.model) == before


@pytest.mark.parametrize("denied", [True, False], ids=["denied", "no kernel"])
def test_what_no_kernel_takes_stays_as_it_was_written(denied: bool) -> None:
    name = "a cap and a mask"
    ids = ["fuse-regions:written-attention:o"] if denied else []
    scope = scope_of(ir.from_proto(model_of(name)), denied=ids, kind="cuda")
    before = ir.to_proto(scope.model)
    with decomposed([scope], [ComposeAttention(takes if denied else lambda *_: False)]):
        assert ir.to_proto(scope.model) == before
    assert ir.to_proto(scope.model) == before
