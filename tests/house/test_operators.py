"""The rows of the operator table say what ONNX's schemas and its reference implementation say."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime.capi.onnxruntime_pybind11_state as runtime
import pytest
from onnx import helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator

from ortkit.fusion.regions.ort_costs import ORT_NS
from ortkit.kernels.region.macros import REDUCTIONS
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.region.ops_activations import ACTIVATIONS
from ortkit.kernels.region.views import VIEWS
from ortkit.operators import OpInfo, operator, where
from ortkit.operators.catalog import CATALOG

#: Of ONNX, and no set asks for them yet. A new operator of the standard gets a row or comes here.
WITHOUT_A_ROW = """
AffineGrid AveragePool BatchNormalization BlackmanWindow CausalConvWithState CenterCropPad
Col2Im ConcatFromSequence Constant ConstantOfShape CumProd CumSum DFT Det EyeLike GlobalAveragePool
GlobalLpPool GlobalMaxPool GridSample HammingWindow HannWindow Hardmax ImageDecoder LRN
LinearAttention LpNormalization LpPool MaxPool MaxRoiPool MaxUnpool MeanVarianceNormalization
MelWeightMatrix NegativeLogLikelihoodLoss NonMaxSuppression NonZero OneHot Optional
OptionalGetElement OptionalHasElement Range RegexFullMatch Resize RoiAlign STFT Scatter
ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert
SequenceLength Shape Size SoftmaxCrossEntropyLoss SplitToSequence StringConcat StringNormalizer
StringSplit SwiGLU TensorScatter TfIdfVectorizer TopK Unique Upsample
"""
#: In ONNX's domain, from ONNX Runtime.
ADDED = {"SimplifiedLayerNormalization"}
#: What the standard calls not deterministic although only what it holds or calls may be.
HOLDERS_OF_OTHERS = {"AffineGrid", "If", "Loop", "Scan", "SequenceMap"}
#: What takes strings and hands them on, but may fill in, interpolate, add or write over them.
NOT_ONLY_MOVED = {
    "CenterCropPad", "Col2Im", "GridSample", "Pad", "Resize", "Scan", "Scatter", "ScatterElements",
    "ScatterND", "StringConcat", "StringNormalizer", "TensorScatter", "Trilu", "Unique",
    "Upsample",
}  # fmt: skip
ANY = 2**31 - 1
#: Without them the operator is another one, or no example of it.
ATTRIBUTES = {"BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}, "Shrink": {"bias": 0.1}}
ROWS = sorted(CATALOG.values(), key=lambda row: (row.domain, row.op_type))
MANY = [
    row for row in ROWS if row.access == "elementwise" and row.inputs != (1, 1) and not row.domain
]


#: Elementwise functions of one floating-point tensor. Erf is left out: the reference computes
#: it in float32.
ONE_FLOAT = [
    row
    for row in ROWS
    if row.access == "elementwise"
    and row.inputs in ((1, 1), (1, 3))
    and row.dtype == "input"
    and not row.op_type.startswith(("Bit", "Erf", "Not"))
    and not row.domain
]


@cache
def standard() -> dict[str, OpSchema]:
    """The newest schema of each operator of ONNX."""
    return {s.name: s for s in onnx.defs.get_all_schemas() if s.domain == ""}


@cache
def contrib() -> dict[tuple[str, str], Any]:
    """The schemas that ONNX Runtime has, by domain and name."""
    return {(s.domain, s.name): s for s in runtime.get_all_operator_schema()}


def types_of(schema: Any, value: Any) -> set[str]:
    """The types that an input or output may have."""
    name = getattr(value, "typeStr", None) or value.type_str
    for constraint in schema.type_constraints:
        if constraint.type_param_str == name:
            return set(constraint.allowed_type_strs)
    return {name}


def schema_of(row: OpInfo) -> Any:
    """The row's schema."""
    if row.domain or row.op_type in ADDED:
        return contrib()[row.domain, row.op_type]
    return standard()[row.op_type]


def name_of_type(value: Any) -> str:
    """Return the type, or the constraint that it follows."""
    return str(getattr(value, "typeStr", None) or value.type_str)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.domain}:{row.op_type}")
def test_inputs_and_types_are_the_schema_s(row: OpInfo) -> None:
    schema = schema_of(row)
    most = None if schema.max_input == ANY else schema.max_input
    assert row.inputs == (schema.min_input, most)
    count = len(schema.inputs)
    assert all(index < count for index in row.parameter_inputs)
    assert not {*row.parameter_inputs} & {*row.data_inputs}
    output = schema.outputs[0]
    data = schema.inputs[row.data_inputs[0]] if count else None
    is_kept = data is not None and (
        name_of_type(data) == name_of_type(output)
        or types_of(schema, data) == types_of(schema, output) == {"tensor(bool)"}
    )
    # A body of control flow gives any of its types.
    assert is_kept == (row.dtype == "input") or row.access == "control"
    if row.dtype in ("bool", "int64"):
        assert types_of(schema, output) == {f"tensor({row.dtype})"}
    if row.dtype == "attribute":
        assert "to" in schema.attributes


def test_all_operators_of_the_standard_were_looked_at() -> None:
    assert standard().keys() == (where() - ADDED) | set(WITHOUT_A_ROW.split())


def test_random_operators_are_those_of_the_standard() -> None:
    found = {
        name
        for name, schema in standard().items()
        if schema.node_determinism == OpSchema.NodeDeterminism.NonDeterministic
    }
    assert where(random=True) == found - HOLDERS_OF_OTHERS


def test_moved_elements_may_be_strings() -> None:
    found = {
        name
        for name, schema in standard().items()
        if schema.inputs
        and schema.inputs[0].type_str == schema.outputs[0].type_str
        and "tensor(string)" in schema.inputs[0].types
    }
    assert where(moves_only=True) == found - NOT_ONLY_MOVED


def test_attributes_tell_control_flow_reductions_and_norms() -> None:
    def having(*names: str) -> set[str]:
        return {n for n, schema in standard().items() if {*names} <= schema.attributes.keys()}

    graphs = {
        name
        for name, schema in standard().items()
        if any(a.type == OpSchema.AttrType.GRAPH for a in schema.attributes.values())
    }
    assert where(access="control") == graphs
    assert where(access="reduction") == having("keepdims") - {"SplitToSequence"}
    assert where(row_norm=True) == having("axis", "epsilon") | ADDED
    assert where(reshapes=True) == {name for name in where(moves_only=True) if "ueeze" in name} | {
        "Flatten",
        "Reshape",
    }


@pytest.mark.parametrize("row", MANY, ids=lambda row: row.op_type)
def test_broadcasting_is_what_the_standard_infers(row: OpInfo) -> None:
    inferred = onnx.shape_inference.infer_shapes(model_of(row, inputs_of(row, (4, 1), (1, 5))))
    shape = inferred.graph.output[0].type.tensor_type.shape
    sizes = tuple(dim.dim_value for dim in shape.dim)
    # The slope goes one way in the standard, and either way in ONNX Runtime.
    assert (sizes == (4, 5)) == (row.broadcasts and row.op_type != "PRelu")


@pytest.mark.parametrize("row", MANY, ids=lambda row: row.op_type)
def test_operands_may_change_places_where_the_row_says_so(row: OpInfo) -> None:
    if row.op_type == "Clip":
        assert not row.commutative  # its bounds are numbers
        return
    first, second, *rest = inputs_of(row, (40,), (40,))[::-1]
    found, swapped = run(row, [*rest, first, second]), run(row, [*rest, second, first])
    assert np.array_equal(found, swapped) == row.commutative


@pytest.mark.parametrize("op_type", sorted(where(affine=True, inputs=(2, 2)) | {"Neg", "Mean"}))
def test_affine_operators_keep_midpoints(op_type: str) -> None:
    row = CATALOG["", op_type]
    rng = np.random.default_rng(0)
    low, high, other = rng.uniform(1, 9, (3, 40)).astype(np.float32)
    rest = [] if row.inputs == (1, 1) else [other]
    ends = [run(row, [x, *rest]) for x in (low, high)]
    middle = run(row, [(low + high) / 2, *rest])
    np.testing.assert_allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-5)


@pytest.mark.parametrize("row", ONE_FLOAT, ids=lambda row: row.op_type)
def test_exact_operators_give_in_float32_what_they_give_in_float64(row: OpInfo) -> None:
    x = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    values = np.abs(x) + 1 if row.op_type in ("Acosh", "Log", "Sqrt") else x / 4
    wide, narrow = run(row, [values.astype(np.float64)]), run(row, [values])
    assert np.array_equal(wide, narrow) == row.exact


def test_views_and_choices_are_exact() -> None:
    assert where(access="view") | {"Max", "Min", "Where", "ReduceMax", "ReduceMin"} <= where(
        exact=True
    )


def test_indexed_operators_have_an_input_that_names_elements() -> None:
    found = {
        name
        for name in where(moves_only=True)
        if [each.name for each in standard()[name].inputs[1:]] in (["indices"], ["condition"])
    }
    assert where(indexed=True) == found
    assert where(moves_only=True, keeps_all=False) == found | {"Slice", "Split"}
    assert where(reshapes=True) <= where(keeps_all=True) <= where(moves_only=True)


def test_activations_read_one_tensor() -> None:
    assert ACTIVATIONS.keys() - where(activation=True) == {"PRelu", "Shrink"}
    assert where(activation=True) - ACTIVATIONS.keys() == {"Clip", "Tanh"}


def test_unknown_facts_are_errors() -> None:
    with pytest.raises(TypeError, match="no such fact: colour"):
        where(colour="green")


def test_all_that_is_asked_for_holds() -> None:
    assert where(access="control", inputs=(1, 1)) == {"If"}
    assert where(domain="com.microsoft", access={"conv", "rotary"}, integer=False) >= {"FusedConv"}
    row = operator("ai.onnx", "Where")
    assert row is not None and row.data_inputs == (1, 2)
    assert operator("com.example", "Add") is None


def test_what_kernels_compute_has_a_row() -> None:
    """A set is what the table and a kernel have in common: without a row, nothing is fused."""
    assert POINTWISE_OPS.keys() - {"exp_nonpositive"} <= where(access="elementwise")
    assert VIEWS.keys() <= where(access="view")
    names = where() | where(domain="com.microsoft")
    assert ORT_NS.keys() | REDUCTIONS.keys() <= names


def inputs_of(row: OpInfo, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Two inputs of these shapes, of a type that the operator takes; of Where a condition too."""
    schema = standard()[row.op_type]
    rng = np.random.default_rng(0)
    kind = _kind(types_of(schema, schema.inputs[-1]))
    found = [
        rng.integers(0, 2, shape) > 0 if kind == "bool" else rng.integers(1, 9, shape).astype(kind)
        for shape in shapes
    ]
    return [found[0] > 4, *found] if row.op_type == "Where" else found


def _kind(types: set[str]) -> str:
    return next(
        kind
        for kind, name in (("float32", "float"), ("uint8", "uint8"), ("bool", "bool"))
        if f"tensor({name})" in types
    )


def model_of(row: OpInfo, arrays: Sequence[np.ndarray]) -> onnx.ModelProto:
    """A model with one node."""
    attributes = ATTRIBUTES.get(row.op_type, {})
    names = [f"x{index}" for index in range(len(arrays))]
    node = helper.make_node(row.op_type, names, ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, arrays, strict=True)
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "g", values, [result])
    version = max(13, standard()[row.op_type].since_version)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])


def run(row: OpInfo, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The result of the reference implementation."""
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    return np.asarray(ReferenceEvaluator(model_of(row, arrays)).run(None, feeds)[0])
