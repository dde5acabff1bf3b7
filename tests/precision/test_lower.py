"""Which nodes compute in half precision, and that the model still computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import models
import ortkit
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.lower import LowerPrecision
from ortkit.rewrite.log import RewriteLog

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
RANDOM = np.random.default_rng(0)


def lowered(
    text: str, to: str = "fp16", denied: frozenset[str] = frozenset(), **weights: np.ndarray
) -> tuple[ir.Model, RewriteLog]:
    """Lower a model given as text, with these initializers."""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    model, log = open_model(proto), RewriteLog(denied)
    LowerPrecision(to).run(model, log)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, log


def floats(shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    return (scale * RANDOM.standard_normal(shape)).astype(np.float32)


def kinds(model: ir.Model) -> dict[str, str]:
    """Return the element type that each node computes, by the name of its first output."""
    shapes = Shapes.infer(model)
    return {
        node.outputs[0].name or "": dtype.name
        for node in model.graph
        if (dtype := shapes.dtype(node.outputs[0])) is not None
    }


def reasons(log: RewriteLog) -> str:
    return "; ".join(miss.reason for miss in log.misses)


def run(model: ir.Model, **feeds: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


MLP = """g (float[n, 8] x) => (float[n, 8] y) {
  h = MatMul(x, w)  a = Add(h, b)  r = Relu(a)  y = MatMul(r, w)
}"""


def test_a_whole_model_is_cast_at_its_ends_only() -> None:
    w, b, x = floats((8, 8)), floats((8,)), floats((3, 8))
    model, log = lowered(MLP, w=w, b=b)
    assert Counter(node.op_type for node in model.graph) == Counter(
        {"MatMul": 2, "Cast": 2, "Add": 1, "Relu": 1}
    )
    assert len(log.hits) == 4
    assert model.graph.inputs[0].dtype == ir.DataType.FLOAT
    assert model.graph.outputs[0].name == "y"
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    # The weight that both products read is rounded and stored once.
    halves = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.FLOAT16]
    assert sorted(value.name or "" for value in halves) == ["b/fp16", "w/fp16"]
    np.testing.assert_allclose(
        run(model, x=x), np.maximum(x @ w + b, 0) @ w, atol=0.02 * np.abs(w).max() * 8
    )
    LowerPrecision().run(model, again := RewriteLog())
    assert not again.hits


def test_bfloat16_rounds_weights_to_bfloat16() -> None:
    w = floats((8, 8))
    model, _ = lowered(MLP, "bf16", w=w, b=floats((8,)))
    stored = model.graph.initializers["w/bf16"].const_value
    assert stored is not None
    np.testing.assert_array_equal(stored.numpy(), w.astype(ml_dtypes.bfloat16))


def test_what_overflows_or_sums_stays_in_float32() -> None:
    model, log = lowered(
        """g (float[n, 8] x) => (float[n, 8] y) {
          h = MatMul(x, w)  e = Exp(h)  q = Mul(h, h)  m = ReduceMean<keepdims = 1>(q, last)
          s = Add(m, small)  r = Sqrt(s)  d = Div(h, r)  t = Add(e, d)  y = MatMul(t, w)
        }""",
        w=floats((8, 8)),
        last=np.array([-1], np.int64),
        small=np.array(1e-12, np.float32),
    )
    found = kinds(model)
    assert {name: found[name] for name in "heqmsrd"} == {
        "h": "FLOAT16", "e": "FLOAT", "q": "FLOAT", "m": "FLOAT", "s": "FLOAT", "r": "FLOAT",
        "d": "FLOAT16",
    }  # fmt: skip
    assert "a constant of 1e-12 is too small" in reasons(log)
    assert "what it sums stays in float32" in reasons(log)


@pytest.mark.parametrize(
    "reduction, kind", [("none", "FLOAT16"), ("add", "FLOAT"), ("max", "FLOAT16")]
)
def test_what_scatters_sum_stays_in_float32(reduction: str, kind: str) -> None:
    """Graph nets add up the messages of any number of neighbours."""
    text = f"""g (float[n, 8] x, int64[e, 1] to) => (float[5, 8] y, float[5, 8] z) {{
      h = MatMul(x, w)
      s = ScatterND <reduction = "{reduction}"> (zero, to, h)  y = MatMul(s, w)
      at = Expand(to, size)
      t = ScatterElements <reduction = "{reduction}"> (zero, at, h)  z = MatMul(t, w)
    }}"""
    zero, size = np.zeros((5, 8), np.float32), np.array([1, 8])
    model, _ = lowered(text, w=floats((8, 8)), zero=zero, size=size)
    assert kinds(model)["s"] == kinds(model)["t"] == kind
    assert kinds(model)["h"] == "FLOAT16"


def test_masks_become_the_lowest_numbers_and_weights_beyond_the_range_stay() -> None:
    mask = np.array([0, -3.4e38, -np.inf, 1], np.float32)
    model, _ = lowered(
        "g (float[n, 4] x) => (float[n, 4] y) { h = MatMul(x, w)  y = Add(h, mask) }",
        w=floats((4, 4)),
        mask=mask,
    )
    stored = model.graph.initializers["mask/fp16"].const_value
    assert stored is not None
    assert stored.numpy().tolist() == [0, -65472, -np.inf, 1]
    huge = floats((4, 4))
    huge[0, 0] = 1e6
    model, log = lowered("g (float[n, 4] x) => (float[n, 4] y) { y = MatMul(x, w) }", w=huge)
    assert not log.hits
    assert "a constant of 1e+06 is beyond half precision" in reasons(log)


def test_cheap_nodes_alone_are_not_worth_their_casts() -> None:
    model, log = lowered("g (float[n] x) => (float[n] y) { a = Relu(x)  y = Neg(a) }")
    assert not log.hits
    assert len(model.graph) == 2


def test_bodies_read_float32() -> None:
    w, x = floats((4, 4)), floats((2, 4))
    model, _ = lowered(
        """g (bool c, float[2, 4] x) => (float[2, 4] y) {
          h = MatMul(x, w)
          y = If (c) <then_branch = t () => (float[2, 4] a) { a = Exp(h) },
                      else_branch = e () => (float[2, 4] b) { b = Neg(h) }>
        }""",
        w=w,
    )
    assert kinds(model)["h"] == "FLOAT16"
    np.testing.assert_allclose(run(model, c=np.array(False), x=x), -(x @ w), atol=0.02)


def test_sizes_and_factors_of_resize_stay() -> None:
    model, log = lowered(
        """g (float[1, 4, 4, 4] x) => (float[1, 4, 8, 8] y) {
          h = Conv(x, w)  y = Resize<mode = "nearest">(h, , scales)
        }""",
        w=floats((4, 4, 1, 1)),
        scales=np.array([1, 1, 2, 2], np.float32),
    )
    assert len(log.hits) == 2
    assert run(model, x=floats((1, 4, 4, 4))).shape == (1, 4, 8, 8)


def test_means_of_norms_stay() -> None:
    model, log = lowered(
        """g (float[2, 4] x) => (float[2, 4] y, float[2, 1] m) {
          h = MatMul(x, w)  y, m = LayerNormalization(h, s)
        }""",
        w=floats((4, 4)),
        s=floats((4,)),
    )
    assert len(log.hits) == 2
    assert model.graph.outputs[1].dtype == ir.DataType.FLOAT


def test_an_output_that_is_read_as_well_and_a_value_returned_twice() -> None:
    x, w = floats((2, 4)), floats((4, 4))
    model, _ = lowered(
        """g (float[2, 4] x) => (float[2, 4] h, float[2, 4] y) {
          h = MatMul(x, w)  y = MatMul(h, w)
        }""",
        w=w,
    )
    assert [value.name for value in model.graph.outputs] == ["h", "y"]
    np.testing.assert_allclose(run(model, x=x), x @ w, atol=0.02)


def test_a_node_that_costs_too_much_can_be_taken_back() -> None:
    first = "lower-precision:fp16:h"
    model, log = lowered(MLP, denied=frozenset({first}), w=floats((8, 8)), b=floats((8,)))
    assert kinds(model)["h"] == "FLOAT"
    assert kinds(model)["a"] == "FLOAT16"
    assert "rolled back" in reasons(log)


def test_a_harmful_node_is_found_and_rolled_back() -> None:
    """Large numbers cancel in `d`, which half precision does not survive."""
    text = f"""{HEADER} g (float[n, 8] x) => (float[n, 8] y) {{
      h = MatMul(x, w)  a = Add(h, big)  d = Sub(a, big)  y = MatMul(d, w)
    }}"""
    proto = onnx.parser.parse_model(text)
    for name, array in (("w", floats((8, 8))), ("big", np.full(8, 30000, np.float32))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", precision="fp16", level=0))
    verification = made.report.verification
    assert verification is not None
    assert verification.verdict == "yes"
    assert any(":a" in item or ":d" in item for item in made.report.rolled_back)
    assert any(hit.id == "lower-precision:fp16:y" for hit in made.report.hits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "spelling", "kernels"),
    [
        ("bert", "ts", "auto"),
        ("llama", "dynamo", "off"),
        ("vit", "legacy", "off"),
        ("resnet", "unfused", "off"),
    ],
)
def test_real_architectures_stay_close(name: str, spelling: str, kernels: Any) -> None:
    known = next(each for each in models.BUILDERS if each.startswith(name))
    options = ortkit.OptimizeOptions(
        target="cuda", arch="sm_90", precision="fp16", kernels=kernels
    )
    made = ortkit.optimize(models.build(known, "tiny", spelling), options)
    verification = made.report.verification
    assert verification is not None
    assert verification.is_good, verification.reason
    assert verification.verdict == "yes" or verification.lacks_hardware_only
    heavy = [node for node in made.model.graph if node.op_type in ("MatMul", "Gemm", "Conv")]
    assert heavy
    assert all(node.outputs[0].dtype == ir.DataType.FLOAT16 for node in heavy)
    assert not made.report.rolled_back


def _layer() -> onnx.ModelProto:
    """Return a product whose epilogue ends in a norm."""
    text = """g (float[16, 64] x) => (float[16, 64] y) {
      h = MatMul(x, w)  a = Add(h, b)  e = Gelu(a)  s = Add(e, x)
      y = LayerNormalization<axis = -1>(s, b)
    }"""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    weights = {"w": floats((64, 64), 0.1), "b": floats((64,))}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return proto


@pytest.mark.parametrize(
    ("build", "kernels"),
    [
        (_layer, "1 kernel"),
        # Triton's interpreter takes 10 s for its attention.
        pytest.param(lambda: models.build("bert", "tiny", "ts"), "4 kernels",
                     marks=pytest.mark.slow),
    ],
    ids=["layer", "bert"],
)  # fmt: skip
def test_bfloat16_is_judged_without_a_device(
    build: Callable[[], onnx.ModelProto], kernels: str
) -> None:
    made = ortkit.optimize(
        build(), ortkit.OptimizeOptions(target="cuda", arch="sm_90", precision="bf16")
    )
    verification = made.report.verification
    assert verification is not None
    assert verification.verdict == "partly", verification.reason
    # Interpreted alone, and not run with the whole model.
    assert [gap.what for gap in verification.not_compared] == [kernels] * 2
    assert "every value rounded to bfloat16" in verification.reason
    # bfloat16 rounds to 1/256: the error is there, so something was rounded.
    assert max(each.max_error_eps for each in verification.outputs) > 2.0**-10 / 2.0**-23


def test_a_cpu_has_no_such_speed() -> None:
    with pytest.raises(UserError, match="fp16 in float32 on CPUs"):
        ortkit.OptimizeOptions(precision="fp16")
