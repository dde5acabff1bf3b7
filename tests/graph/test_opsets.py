"""Raising the opset changes no result; what cannot be raised stays as it is, with a reason."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from models.catalog import BUILDERS, build, spellings
from models.feeds import feeds
from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text, to_text
from ortkit.graph.opsets.adapters import ADAPTERS
from ortkit.graph.opsets.kernels import CPU_WITHOUT_KERNEL, CUDA_WITHOUT_KERNEL, LAST_INLINED
from ortkit.graph.opsets.raising import NEWEST, OLDEST, Plan, plan_raise, raise_opset
from ortkit.graph.opsets.schema_steps import history
from ortkit.graph.walk import nodes_below
from tests.graph.opset_cases import CASES, feeds_of, model_of, ort, run

#: Where a case cannot be raised any further, and why.
REFUSED = {
    "roi align": (22, "no kernel"),
    "roi align max": (22, "no kernel"),
    "global pools": (22, "no kernel for it (GlobalLpPool"),
    "attention": (25, "no kernel"),
    "AveragePool kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]"
    ", count_include_pad=1 11": (19, "fewer windows"),
    **{
        f"{op} kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1] {opset}": (
            version,
            "fewer windows",
        )
        for op, opset, version in (
            ("AveragePool", 10, 19),
            ("MaxPool", 10, 22),
            ("LpPool", 18, 22),
        )
    },
}
#: Versions that onnx refuses the original of as well: GroupNormalization came marked as removed.
FIRST = {name: 21 for name in CASES if name.startswith("group norm")}


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", CASES)
def test_every_newer_version_computes_the_same(name: str) -> None:
    before = model_of(CASES[name])
    fed = feeds_of(before)
    want = run(before, fed)
    opset = before.opset_import[0].version
    last, said = REFUSED.get(name, (NEWEST + 1, ""))
    assert opset >= OLDEST
    for version in range(FIRST.get(name, opset + 1), NEWEST + 1):
        model = ir.from_proto(before)
        reason = raise_opset(model, version)
        if version >= last:
            assert reason is not None
            assert said in reason
            assert to_text(model) == to_text(ir.from_proto(before))
            continue
        if version == 13 and reason is not None and "of size zero" in reason:
            assert "0" in name or "n," in name
            continue
        assert reason is None
        check_model(model)
        after = ir.to_proto(model)
        onnx.checker.check_model(after, full_check=True)
        assert after.opset_import[0].version == version
        assert after.graph.input == before.graph.input
        assert [item.name for item in after.graph.output] == [
            one.name for one in before.graph.output
        ]
        for wanted, got in zip(want, run(after, fed), strict=True):
            if "AveragePool" in name and version >= 19:
                # ONNX Runtime sums in another order there while its optimizations are off.
                np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, strict=True)
            else:
                np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("version", [23, NEWEST])
@pytest.mark.parametrize(
    ("name", "spelling"),
    [(name, spelling) for name in sorted(BUILDERS) for spelling in spellings(name)],
)
def test_real_architectures(name: str, spelling: str, version: int) -> None:
    before = build(name, "tiny", spelling)
    model = ir.from_proto(before)
    if version == 25 and any(node.op_type == "Attention" for node in model.graph):
        assert "Attention of opset 25" in (raise_opset(model, version) or "")
        return
    assert raise_opset(model, version) is None
    check_model(model)
    fed = feeds(before, batch=2)
    for wanted, got in zip(run(before, fed), run(ir.to_proto(model), fed), strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)


def test_bodies_read_constants_of_the_main_graph() -> None:
    before = onnx.parser.parse_model(BODIES)
    model = ir.from_proto(before)
    assert raise_opset(model, 23) is None
    check_model(model)
    squeezes = [node for node in nodes_below(model.graph) if node.op_type == "Squeeze"]
    assert len(squeezes) == 3
    assert len({node.inputs[1] for node in squeezes}) == 1, "equal constants are shared"
    after = ir.to_proto(model)
    for flag in (False, True):
        fed = {"x": np.ones((2, 1, 3), np.float32), "c": np.array(flag)}
        for wanted, got in zip(run(before, fed), run(after, fed), strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


BODIES = """<ir_version: 7, opset_import: ["" : 11]>
g (float[2, 1, 3] x, bool c) => (float[2, 3] y, float[2, 3] z)
<int64 n = {3}, bool go = {1}> {
  a = Squeeze <axes = [1]> (x)
  y = If (c) <
    then_branch = t () => (float[2, 3] r) { r = Squeeze <axes = [1]> (x) },
    else_branch = e () => (float[2, 3] s) { s = Softmax (a) }
  >
  z = Loop (n, go, a) <
    body = b (int64 i, bool k, float[2, 3] u) => (bool l, float[2, 3] w) {
      l = Identity (k)
      v = Squeeze <axes = [1]> (x)
      w = Add (u, v)
    }
  >
}"""


def test_functions_have_versions_of_their_own() -> None:
    before = onnx.parser.parse_model(FUNCTIONS)
    model = ir.from_proto(before)
    assert raise_opset(model, 18) is None
    check_model(model)
    assert {
        function.name: function.opset_imports[""] for function in model.functions.values()
    } == {
        "old": 18,
        "new": 21,
        "mixed": 18,
    }
    # ONNX Runtime 1.31.1 reads all functions in the model's version, so that it does not run the
    # original; it does when all have come to the same one.
    x = np.array([[[1, 2, 6]], [[0, 0, 3]]], np.float32)
    y, z = run(ir.to_proto(model), {"x": x})
    np.testing.assert_array_equal(y, x[:, 0] - np.array([[3], [1]], np.float32), strict=True)
    np.testing.assert_array_equal(z, np.zeros((2, 1), np.float32), strict=True)


FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
g (float[2, 1, 3] x) => (float[2, 3] y, float[2, 1] z)
{ a = f.old (x)  b = f.new (a)  y = f.mixed (b)  z = ReduceMean <axes = [1]> (y) }
<opset_import: ["" : 12], domain: "f">
old (x) => (y) { a = Unsqueeze <axes = [0]> (x)  b = Squeeze <axes = [0]> (a)
                 c = Clip (b)  y = Squeeze <axes = [1]> (c) }
<opset_import: ["" : 21], domain: "f">
new (x) => (y) { y = Identity (x) }
<opset_import: ["" : 17], domain: "f">
mixed (x) => (y) { m = ReduceMean <axes = [-1]> (x)  y = Sub (x, m) }
"""


def test_a_bound_of_a_function_without_types_is_refused() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 10, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.clip (x) }
        <opset_import: ["" : 10], domain: "f">
        clip (x) => (y) { y = Clip <min = 0.5> (x) }"""
    )
    reason = raise_opset(model, 13)
    assert reason is not None
    assert "the type of its input is not known" in reason


def test_a_parameter_of_a_function_is_refused() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 12, "f" : 1]>
        g (float[2, 1] x) => (float[2] y) { y = f.drop <axes = [1]> (x) }
        <opset_import: ["" : 12], domain: "f">
        drop <axes> (x) => (y) { y = Squeeze <axes: ints = @axes> (x) }"""
    )
    reason = raise_opset(model, 13)
    assert reason == "an attribute is a parameter of the function (Squeeze 'y')"
    assert raise_opset(model, 12) is None


def test_a_function_may_be_called_like_an_operator() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 12, "f" : 1]>
        g (float[2] x) => (float[2] y) { y = f.Squeeze <axes = [1]> (x) }
        <opset_import: ["" : 12], domain: "f">
        Squeeze <axes> (x) => (y) { y = Identity (x) }"""
    )
    assert raise_opset(model, 21) is None
    assert set(model.graph[0].attributes) == {"axes"}


def test_nodes_that_onnx_does_not_know() -> None:
    text = """<ir_version: 10, opset_import: ["" : 12, "com.microsoft" : 1]>
    g (float[2, 4] x, float[4] s) => (float[2, 4] y, float[2] z) {
      a = SimplifiedLayerNormalization <axis = -1> (x, s)
      b = com.microsoft.Gelu (a)
      c = LayerNormalization (b, s)
      y = ThresholdedRelu (c)
      z = ReduceSum <axes = [1], keepdims = 0> (y)
    }"""
    model = from_text(text)
    before = ir.to_proto(model)
    assert raise_opset(model, 23) is None
    check_model(model)
    fed = {
        "x": np.linspace(-1, 2, 8, dtype=np.float32).reshape(2, 4),
        "s": np.arange(4, dtype=np.float32),
    }
    for wanted, got in zip(run(before, fed), run(ir.to_proto(model), fed), strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    strange = from_text(text.replace("ThresholdedRelu", "Nonsense"))
    assert raise_opset(strange, 23) == "ONNX has no Nonsense in opset 12 (Nonsense 'y')"


@pytest.mark.parametrize(
    ("opset", "nodes", "said"),
    [
        (10, "a, m = Dropout (x) y = Cast <to = 1> (m)", "its mask is read"),
        (7, "y = BatchNormalization <spatial = 0> (x, s, s, s, s)", "(spatial=0)"),
        (9, "a, m, v = BatchNormalization (x, s, s, s, s) y = Add (a, m)", "it is for training"),
        (10, "c = Abs (s) y = Resize (x, c)", "its scales are not constant"),
        (10, "c = Constant <value = float[2] {0.5, 2.0}> () y = Resize (x, c)", "some shrink"),
        (9, "i = Cast <to = 6> (x) e = Erf (i) y = Cast <to = 1> (e)", "takes fewer types"),
        (11, 'y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn">'
             " (x, s, s)", "the coordinates"),
        (21, "y = RandomNormalLike (x)", "no kernel"),
        (6, "y = Relu (x)", "older than 7"),
    ],
)  # fmt: skip
def test_what_is_refused_changes_nothing(opset: int, nodes: str, said: str) -> None:
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2, 2] x, float[2] s) =>'
        f" (float[m, k] y, float[1, 2, 2] z) {{ {nodes} z = Unsqueeze <axes = [0]> (x) }}"
    )
    if opset >= 13:
        text = text.replace("Unsqueeze <axes = [0]> (x)", "Identity (x)")
    model = from_text(text)
    before = to_text(model)
    reason = raise_opset(model, 23)
    assert reason is not None
    assert said in reason
    assert to_text(model) == before


def test_a_version_too_new_is_refused() -> None:
    model = from_text('<ir_version: 8, opset_import: ["" : 20]> g (float x) => (float x) {}')
    assert raise_opset(model, NEWEST + 1) == (
        f"opset {NEWEST + 1} is newer than {NEWEST}, the newest that models are converted to"
    )


def test_an_old_ir_version_lists_its_constants_as_inputs() -> None:
    model = from_text(
        """<ir_version: 3, opset_import: ["" : 8]>
        g (float[2, 1] x) => (float[2] y) { y = Squeeze <axes = [1]> (x) }"""
    )
    assert raise_opset(model, 13) is None
    check_model(model)
    assert [value.is_initializer() for value in model.graph.inputs] == [False, True]
    (y,) = run(ir.to_proto(model), {"x": np.ones((2, 1), np.float32)})
    np.testing.assert_array_equal(y, [1, 1])


def test_weights_are_not_read(tmp_path: Path) -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 12]>
        g (float[n, 8192] x) => (float[n] y)
        { a = Mul (x, w)  b = Softmax (a)  c = Clip (b)  y = ReduceSum <axes = [1], keepdims = 0>
          (c) } """.replace("x, w", "x, x")
    )
    weight = ir.Value(
        name="w",
        const_value=ir.ExternalTensor(
            "missing.bin", 0, 1 << 33, ir.DataType.FLOAT, name="w",
            shape=ir.Shape((1 << 18, 8192)), base_dir=tmp_path,
        ),
    )  # fmt: skip
    model.graph.register_initializer(weight)
    node = model.graph[0]
    node.replace_input_with(1, weight)
    assert raise_opset(model, 23) is None
    assert model.graph.opset_imports[""] == 23


def test_names_do_not_collide() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 12]>
        g (float[2, 1] x) => (float[2] y)
        { z = Squeeze <axes = [1]> (x)  y = Identity (z) }"""
    )
    model.graph[0].outputs[0].name = "y/axes"
    model.graph[0].name = "y/axes/axes"
    assert raise_opset(model, 13) is None
    check_model(model)
    assert list(model.graph.initializers) == ["y/axes/axes_1"]


@pytest.mark.parametrize(("op_type", "version"), ADAPTERS)
def test_an_adapter_is_for_a_version_that_changed_its_operator(op_type: str, version: int) -> None:
    assert version in history(op_type)


def test_what_onnx_runtime_does_not_run_is_not_emitted() -> None:
    """Each step between schemas that loses ONNX Runtime's kernel is one that adapters know."""
    kernels = defaultdict(list)
    for one in ort.capi.onnxruntime_pybind11_state.get_all_opkernel_def():
        if one.provider == "CPUExecutionProvider" and one.domain == "":
            kernels[one.op_name].append(one.version_range)

    def runs(op_type: str, version: int) -> bool:
        # A range without end is for the version it starts with only: see KernelRegistry.
        return any(
            first == version or (first < version <= last and last < 2**31 - 1)
            for first, last in kernels[op_type]
        )

    lost = {
        (op_type, new)
        for op_type in list(kernels)
        for old, new in zip(history(op_type), history(op_type)[1:], strict=False)
        if OLDEST < new <= NEWEST and runs(op_type, old) and not runs(op_type, new)
    }
    assert lost
    assert lost <= set(ADAPTERS) | CPU_WITHOUT_KERNEL


@pytest.mark.parametrize("absent", [CPU_WITHOUT_KERNEL, CUDA_WITHOUT_KERNEL])
def test_a_kernel_ends_at_a_version_that_changed_its_operator(
    absent: frozenset[tuple[str, int]],
) -> None:
    for op_type, version in absent:
        assert version in history(op_type)


@pytest.mark.parametrize("op_type", LAST_INLINED)
def test_a_function_that_is_inlined_in_some_versions_only(op_type: str) -> None:
    last = LAST_INLINED[op_type]
    text = f"g (float[2] x) => (float[2] y) {{ y = {op_type} (x) }}"
    old, new = (
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {version}]> {text}')
        for version in (last, last + 1)
    )
    fed = {"x": np.ones(2, np.float32)}
    assert len(run(old, fed)) == 1
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.NotImplemented):
        run(new, fed)
    reason = f"ONNX Runtime does not run {op_type} in opset {last + 1} ({op_type} 'y')"
    assert raise_opset(ir.from_proto(old), last + 1) == reason


def test_a_gpu_keeps_its_kernels() -> None:
    model = from_text(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 2, 4, 4] x) => (float[1, 2, 3, 3] y)
        { y = MaxPool <kernel_shape = [2, 2]> (x) }"""
    )
    assert isinstance(plan_raise(model, 21, without_kernel=CUDA_WITHOUT_KERNEL), Plan)
    reason = "MaxPool of opset 22: ONNX Runtime has no kernel for it (MaxPool 'y')"
    assert plan_raise(model, 22, without_kernel=CUDA_WITHOUT_KERNEL) == reason
    assert isinstance(plan_raise(model, 22), Plan)
