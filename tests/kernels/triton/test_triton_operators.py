"""Every operator in every type as Triton writes it, interpreted; the accuracy of functions."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from fused_model import unary
from interpreter import Interpreter
from onnx import helper
from single_node import LATE, Node, cut, run_by_onnxruntime, run_by_reference
from test_pointwise import INEXACT_IN_RUNTIME, OURS, assert_equal, feeds, nodes
from test_vectormath import CASES

from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text

#: Of all float32 every so many-th.
_STEP = 200_003
FUNCTIONS = {
    "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan",
    "atanh": "Atanh", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "gelu": "Gelu",
    "gelu_tanh": 'Gelu<approximate = "tanh">', "log": "Log", "mish": "Mish", "sigmoid": "Sigmoid",
    "sin": "Sin", "sinh": "Sinh", "softplus": "Softplus", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip


def region(node: Node) -> RegionSignature:
    """The node as a region; bounds of Clip are scalars."""
    names = [f"X{i}" for i in range(len(node.inputs))]
    written = helper.make_node(node.op_type, names, ["Y"], **node.attributes)
    opset = helper.make_opsetid("", LATE.get(node.op_type, 20))
    function = helper.make_function("d", "f", names, ["Y"], [written], [opset])
    inputs = tuple(
        TensorSpec(name, dtype, () if node.op_type == "Clip" and place else ("n",))
        for place, (name, dtype) in enumerate(zip(names, node.inputs, strict=True))
    )
    assert isinstance(node.output, str)
    output = TensorSpec("Y", node.output, ("n",))
    return RegionSignature("op", body_text(function), inputs, (output,))


@pytest.mark.sampled(16)
@pytest.mark.parametrize("op_type", sorted(set(POINTWISE_OPS) - OURS))
def test_operator_in_every_type(op_type: str, interpreter: Interpreter) -> None:
    found = list(nodes(op_type))
    assert found
    for node in found:
        arrays = feeds(node)
        expected = None
        if (op_type, node.inputs[0]) not in INEXACT_IN_RUNTIME:
            expected = run_by_onnxruntime(node, arrays)
        if expected is None:
            expected = run_by_reference(node, arrays)
        (result,) = interpreter.run(region(node), cut(node, arrays))
        assert_equal(node, result, expected)


SPECIAL = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 65504.0, -65504.0]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_special_values_in_a_region(dtype: str, interpreter: Interpreter) -> None:
    """What the operators' table alone does not show: left out bounds, roots as powers, factors."""
    body = (
        '<opset_import: ["" : 20]> f (X) => (A, B, C, D) { A = Clip (X)  B = Gelu (X)'
        "  Hr = Constant <value_float: float = 0.5> ()  H = CastLike (Hr, X)  C = Pow (X, H)"
        "  Zr = Constant <value_float: float = 0.0> ()  Z = CastLike (Zr, X)  D = Mul (X, Z) }"
    )
    if dtype == "float32":
        body = body.replace("Hr", "H").replace("  H = CastLike (H, X)", "")
        body = body.replace("Zr", "Z").replace("  Z = CastLike (Z, X)", "")
    outputs = tuple(TensorSpec(name, dtype, ("n",)) for name in "ABCD")
    signature = RegionSignature("special", body, (TensorSpec("X", dtype, ("n",)),), outputs)
    x = np.array(SPECIAL, dtype)
    limited, gelu, root, product = interpreter.run(signature, [x])
    edge = np.finfo(dtype).max
    np.testing.assert_array_equal(limited, np.clip(x, -edge, edge))
    assert np.isnan(gelu[1:3]).all()
    assert gelu[0] == np.inf
    np.testing.assert_array_equal(root[:2], [np.inf, np.inf])
    assert np.isnan(root[[2, 6, 8, 10]]).all()
    assert np.isnan(product[:3]).all()


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("checker") / "ulps.so"
    source = Path(__file__).parent.parent / "ulps.c"
    command = [*find_linker(), "-O2", "-shared", "-fPIC", "-o", str(path), str(source), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(path))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_errors_stay_within_the_stated_bounds(
    name: str, interpreter: Interpreter, checker: ctypes.CDLL
) -> None:
    """The bounds of the same functions on CPUs: they are written once."""
    signature = unary(FUNCTIONS[name])
    pointer = ctypes.POINTER(ctypes.c_float)

    def run(x: object, y: object, count: int) -> int:
        """Compute one chunk; the checker judges it."""
        inputs, outputs = (np.ctypeslib.as_array(item, (count,)) for item in (x, y))  # type: ignore[arg-type]
        (outputs[:],) = interpreter.run(signature, [inputs.copy()]) if count else ([],)
        return 0

    kernel = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, ctypes.c_int64)(run)
    reference = getattr(checker, f"ref_{name}")
    for bound in CASES[name].bounds:
        worst, where = ctypes.c_double(), ctypes.c_float()
        checker.largest_error(
            kernel, reference, ctypes.c_uint64(0), ctypes.c_uint64(2**32),
            ctypes.c_uint64(_STEP), ctypes.c_float(bound.low), ctypes.c_float(bound.high),
            ctypes.c_int32(bound.is_absolute), ctypes.c_int32(bound.with_nan),
            ctypes.byref(worst), ctypes.byref(where),
        )  # fmt: skip
        assert worst.value <= bound.error, f"{name}({where.value!r}) is off by {worst.value}"
