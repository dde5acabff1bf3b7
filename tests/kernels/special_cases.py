"""What special values are fed to: operators of regions, chains of them, and reductions of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from elementwise import Array, numpy_dtype
from onnx import helper
from single_node import LATE, TYPE_NUMBERS, Node, as_array, as_value
from test_pointwise import OURS, VARIANTS

from ortkit.kernels.region.dtypes import ELEMENT_TYPES
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text
from ortkit.refusal import Refused

FLOATS = ("float32", "float16", "bfloat16", "float64")
#: Constants that operators of two operands are given on the right.
CONSTANTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -2.0, np.inf, -np.inf, np.nan)
FEW_CONSTANTS = (0.0, 0.5, -1.0, np.inf, np.nan)
WITH_CONSTANTS = ("Add", "Div", "Equal", "Less", "Max", "Min", "Mod", "Mul", "PRelu", "Pow", "Sub")
CLIPS = (
    (-1.0, 1.5), (np.nan, 1.0), (0.0, np.nan), (-np.inf, np.inf), (2.0, -2.0), (None, 1.0),
    (0.0, None), (None, None),
)  # fmt: skip
CHAINS = {
    "gelu": "a = Div (X, K1.4142135) b = Erf (a) c = Add (b, K1) d = Mul (X, c)"
    " OUT = Mul (d, K0.5)",
    "gelu_tanh": "a = Pow (X, K3) b = Mul (a, K0.044715) c = Add (X, b) d = Mul (c, K0.79788456)"
    " e = Tanh (d) f = Add (e, K1) g = Mul (K0.5, f) OUT = Mul (X, g)",
    "silu": "a = Sigmoid (X) OUT = Mul (X, a)",
    "sigmoid": "a = Neg (X) b = Exp (a) c = Add (b, K1) OUT = Div (K1, c)",
    "softplus": "a = Exp (X) b = Add (a, K1) OUT = Log (b)",
    "mish": "a = Softplus (X) b = Tanh (a) OUT = Mul (X, b)",
    "hard_swish": "a = Add (X, K3) b = Clip (a, K0, K6) c = Mul (X, b) OUT = Div (c, K6)",
    "difference": "OUT = Sub (X, X)",
    "quotient": "OUT = Div (X, X)",
    "root_of_square": "a = Mul (X, X) OUT = Sqrt (a)",
    "exp_of_log": "a = Log (X) OUT = Exp (a)",
    "there_and_back": "a = Mul (X, Y) OUT = Div (a, Y)",
    "spread": "a = Max (X, Y) b = Min (X, Y) OUT = Sub (a, b)",
    "where_less": "a = Less (X, Y) OUT = Where (a, X, Y)",
    "where_nan": "a = IsNaN (X) OUT = Where (a, Y, X)",
    "not_less": "a = Less (X, Y) b = Not (a) OUT = Where (b, X, Y)",
}


@dataclass
class Case:
    """Nodes on the values X and Y that make one value."""

    name: str
    nodes: list[onnx.NodeProto]
    output: str
    opset: int = 20

    @property
    def inputs(self) -> list[str]:
        read = {name for node in self.nodes for name in node.input}
        return [name for name in ("X", "Y") if name in read]


@dataclass
class Cases:
    """The cases of one element type."""

    dtype: str
    found: list[Case] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def add(self, name: str, text: str, opset: int = 20, **constants: float | None) -> None:
        """Write a case; `K<number>` in the text is a constant, as names in `constants` are."""
        prefix = f"v{next(self._numbers)}_"
        words = [word.strip("(),") for word in text.split()]
        numbers = {word: float(word[1:]) for word in words if word[:1] == "K"} | constants
        head = f'<opset_import: ["" : {opset}], domain: "d"> f (X, Y) => (OUT)'
        names = {key: f"K{place}" for place, key in enumerate(numbers)}
        text = " ".join(names.get(w.strip("(),"), "").join(w.split(w.strip("(),"), 1))
                        if w.strip("(),") in names else w for w in text.split())  # fmt: skip
        function = onnx.parser.parse_function(f"{head} {{ {text} }}")
        nodes = [self._constant(prefix + names[key], value) for key, value in numbers.items()]
        kept = {"X", "Y", ""}
        for node in function.node:
            for values in (node.input, node.output):
                renamed = [name if name in kept else prefix + name for name in values]
                del values[:]
                values.extend(renamed)
            nodes.append(node)
        self.found.append(Case(name, nodes, f"{prefix}OUT", opset))

    def _constant(self, name: str, value: float) -> onnx.NodeProto:
        raw = np.array(value).astype(numpy_dtype(self.dtype)).tobytes()
        tensor = helper.make_tensor("k", TYPE_NUMBERS[self.dtype], [], raw, raw=True)
        return helper.make_node("Constant", [], [name], value=tensor)

    def operators(self) -> None:
        """Add every operator that takes one to three values of this type."""
        for op_type in sorted(set(POINTWISE_OPS) - OURS - {"CastLike", "Where"}):
            for attributes in VARIANTS.get(op_type, [{}]):
                for operands in (1, 2, 3):
                    node = Node(op_type, (self.dtype,) * operands, attributes)
                    if isinstance(node.output, Refused) or (op_type == "Clip" and operands > 1):
                        continue
                    text = "".join(f"{key}: {_kind(value)} = {_shown(value)}, "
                                   for key, value in attributes.items())  # fmt: skip
                    given = f"<{text[:-2]}>" if text else ""
                    call = f"OUT = {op_type} {given} ({', '.join(['X', 'Y', 'X'][:operands])})"
                    opset = LATE.get(op_type, 20)
                    self.add(f"{op_type}{given}/{operands}", call, opset)

    def with_constants(self, constants: Sequence[float]) -> None:
        """Add operators of two operands with a constant on either side, and bounds of Clip."""
        for op_type in WITH_CONSTANTS:
            attributes = {"fmod": 1} if op_type == "Mod" else {}
            if isinstance(Node(op_type, (self.dtype,) * 2, attributes).output, Refused):
                continue
            given = " <fmod: int = 1>" if attributes else ""
            for value in constants:
                self.add(f"{op_type}(x, {value})", f"OUT = {op_type}{given} (X, C)", C=value)
                if op_type in ("Div", "Mod", "Pow", "Sub"):
                    self.add(f"{op_type}({value}, x)", f"OUT = {op_type}{given} (C, X)", C=value)
        for low, high in CLIPS:
            bounds = {"L": low, "H": high}
            given = {name: value for name, value in bounds.items() if value is not None}
            operands = ", ".join(name if name in given else "" for name in bounds)
            self.add(f"Clip(x, {low}, {high})", f"OUT = Clip (X, {operands})", **given)

    def chains(self) -> None:
        """Add short chains, decomposed activations among them."""
        for name, text in CHAINS.items():
            self.add(name, text)


def special_values(dtype: str) -> Array:
    """Zeros, infinities, NaN, the edges of a type, and where functions overflow."""
    kind = numpy_dtype(dtype)
    limits = ml_dtypes.finfo(kind)
    edges = [float(size) for size in (limits.max, limits.tiny, limits.smallest_subnormal)]
    sizes = [0.0, np.inf, *edges, 0.5, 1.0, 2.5, 3.0, 88.0, 110.0, 300.0, 1e4]
    if dtype != "float16":
        sizes += [2.2e9, 1e19, 1e30]
    return np.array([sign * size for size in sizes for sign in (1, -1)] + [np.nan]).astype(kind)


@dataclass(frozen=True)
class Answers:
    """What ONNX Runtime gives: in an array of many elements, and for elements alone."""

    together: Array
    alone: Array
    """Of the first ones."""


def answers(cases: Sequence[Case], dtype: str, feeds: dict[str, Array]) -> dict[str, Answers]:
    """Run each case by ONNX Runtime's own nodes, those that it has kernels for."""
    single = len(special_values(dtype))
    found = {}
    for case in cases:
        session = _session(case, dtype)
        if session is None:
            continue
        kind = output_dtype(session)
        together = _run(session, feeds, kind)
        rows = [
            {name: array[at : at + 1] for name, array in feeds.items()} for at in range(single)
        ]
        alone = np.concatenate([_run(session, row, kind) for row in rows])
        found[case.output] = Answers(together, alone)
    return found


def output_dtype(session: ort.InferenceSession) -> str:
    """Return the type of a session's output as kernels call it."""
    name = session.get_outputs()[0].type[len("tensor(") : -1]
    return {"float": "float32", "double": "float64"}.get(name, name)


def regions(
    cases: Sequence[Case], dtype: str, outputs: dict[str, Answers]
) -> Iterator[tuple[RegionSignature, list[Case]]]:
    """Yield regions of up to 24 cases each."""
    for opset in (20, *LATE.values()):
        alike = [case for case in cases if case.opset == opset and case.output in outputs]
        for start in range(0, len(alike), 24):
            part = alike[start : start + 24]
            inputs = [name for name in ("X", "Y") if any(name in case.inputs for case in part)]
            function = helper.make_function(
                "d", "special", inputs, [case.output for case in part],
                [node for case in part for node in case.nodes], [helper.make_opsetid("", opset)],
            )  # fmt: skip
            made = tuple(
                TensorSpec(case.output, _name(outputs[case.output].together), ("n",))
                for case in part
            )
            given = tuple(TensorSpec(name, dtype, ("n",)) for name in inputs)
            yield RegionSignature("special", body_text(function), given, made), part


def agree(found: Array, expected: Array, dtype: str) -> Array:
    """Say per element: NaN where NaN, infinite with the sign, finite numbers close by."""
    if expected.dtype.kind not in "fV":
        return np.asarray(found == expected)
    tolerance = {"float16": 3e-3, "bfloat16": 2e-2, "float64": 1e-9}.get(dtype, 1e-4)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        is_close = np.abs(a - b) <= tolerance * np.maximum(1, np.abs(b))
    finite = np.isfinite(a) & np.isfinite(b) & is_close
    return np.asarray((np.isnan(a) & np.isnan(b)) | (a == b) | finite)


def _session(case: Case, dtype: str) -> ort.InferenceSession | None:
    inputs = [
        helper.make_tensor_value_info(name, TYPE_NUMBERS[dtype], ["n"]) for name in case.inputs
    ]
    outputs = [onnx.ValueInfoProto(name=case.output)]
    graph = helper.make_graph(case.nodes, "case", inputs, outputs)
    opsets = [helper.make_opsetid("", case.opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own exceptions have no common class
        if "NOT_IMPLEMENTED" in str(error) or "Type Error" in str(error):
            return None
        raise


def _run(session: ort.InferenceSession, feeds: dict[str, Array], dtype: str) -> Array:
    given = {item.name: as_value(feeds[item.name]) for item in session.get_inputs()}
    (value,) = session.run_with_ort_values([session.get_outputs()[0].name], given)
    return as_array(value, dtype, next(iter(feeds.values())).size).copy()


def _name(array: Array) -> str:
    return array.dtype.name


def _kind(value: float | int | str) -> str:
    return {float: "float", int: "int", str: "string"}[type(value)]


def _shown(value: float | int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


assert set(FLOATS) <= set(ELEMENT_TYPES.values())
