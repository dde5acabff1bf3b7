"""Outputs that take the memory of an input: that ONNX Runtime does it, and only where it may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ortkit.errors import InternalError
from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from tests.kernels.fused_model import session
from tests.native.c_kernel import library_of_c

# Y = X + 1, V = W + 1, and which of them lie where X and W do.
SOURCE = """
#include <stdint.h>
int32_t probe(const float* x, const float* w, float* y, float* v, int32_t* where, int64_t n,
              int64_t begin, int64_t end) {
  (void)n;
  for (int64_t i = begin; i < end; ++i) {
    y[i] = x[i] + 1;
    v[i] = w[i] + 1;
    where[i] = (x == y) + 2 * (w == v) + 4 * (x == v) + 8 * (w == y);
  }
  return 0;
}
"""
BODY = """<opset_import: ["" : 20]> f (X, W) => (Y, V, F) {
  One = Constant <value = float {1.0}> ()
  Y = Add (X, One)  V = Add (W, One)  F = Cast <to = 6> (X)
}"""
SIGNATURE = RegionSignature(
    "probe",
    BODY,
    (TensorSpec("X", "float32", ("n",)), TensorSpec("W", "float32", ("n",))),
    tuple(
        TensorSpec(name, dtype, ("n",))
        for name, dtype in (("Y", "float32"), ("V", "float32"), ("F", "int32"))
    ),
)
Pairs = tuple[tuple[int, int], ...]


def library(folder: Path, pairs: Pairs) -> Path:
    launch = Launch((Extent(1, ("s0",)),), Extent(1), 100, pairs)
    return library_of_c(folder, SOURCE, SIGNATURE, launch)


def model(first: str, outputs: tuple[str, ...] = ("Z", "U", "F")) -> bytes:
    """A and B through Neg (or not, as `first` says) into the region, and on through Abs."""
    nodes = [
        helper.make_node("Neg", ["A"], ["NA"]),
        helper.make_node("Neg", ["B"], ["NB"]),
        helper.make_node(SIGNATURE.op_type, first.split(), ["Y", "V", "F"], domain=DOMAIN),
        helper.make_node("Abs", ["Y"], ["Z"]),
        helper.make_node("Abs", ["V"], ["U"]),
    ]
    function = SIGNATURE.function()
    function.domain, function.name = DOMAIN, SIGNATURE.op_type

    def value(name: str) -> onnx.ValueInfoProto:
        kind = TensorProto.INT32 if name == "F" else TensorProto.FLOAT
        return helper.make_tensor_value_info(name, kind, ["n"])

    graph = helper.make_graph(
        nodes, "g", [value("A"), value("B")], [value(name) for name in outputs]
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    made = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


# What is wired in, what may share memory, and what does (1: X and Y, 2: W and V, 4: X and V).
CASES: dict[str, tuple[str, Pairs, int]] = {
    "both": ("NA NB", ((0, 0), (1, 1)), 3),
    "one": ("NA NB", ((1, 1),), 2),
    "crosswise": ("NA NB", ((0, 1),), 4),
    "none": ("NA NB", (), 0),
    "the model's inputs stay": ("A B", ((0, 0), (1, 1)), 0),
    "one of them": ("A NB", ((0, 0), (1, 1)), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_is_shared_where_declared_and_allowed(case: str, tmp_path: Path) -> None:
    first, pairs, where = CASES[case]
    loaded = session(model(first), library(tmp_path, pairs), threads=2)
    a, b = (np.linspace(*ends, 5000, dtype=np.float32) for ends in ((-3, 3), (7, 9)))
    signs = [-1 if name.startswith("N") else 1 for name in first.split()]
    for _ in range(3):  # the second run has a memory pattern
        z, u, found = loaded.run(None, {"A": a.copy(), "B": b.copy()})
        assert set(found.tolist()) == {where}
        np.testing.assert_array_equal(z, np.abs(signs[0] * a + 1))
        np.testing.assert_array_equal(u, np.abs(signs[1] * b + 1))


def test_an_input_that_is_read_again_keeps_its_memory(tmp_path: Path) -> None:
    path = library(tmp_path, ((0, 0), (1, 1)))
    a, b = np.arange(9, dtype=np.float32), np.ones(9, np.float32)
    for outputs in (("NA", "Z", "U", "F"), ("Z", "U", "F", "NA")):
        loaded = session(model("NA NB", outputs), path)
        names = dict(zip(outputs, loaded.run(None, {"A": a, "B": b}), strict=True))
        np.testing.assert_array_equal(names["NA"], -a)
        np.testing.assert_array_equal(names["Z"], np.abs(1 - a))
        assert set(names["F"].tolist()) == {2}


def test_one_tensor_twice_is_not_overwritten(tmp_path: Path) -> None:
    path = library(tmp_path, ((0, 0), (1, 1)))
    a = np.arange(9, dtype=np.float32)
    z, u, found = session(model("NA NA"), path).run(None, {"A": a, "B": a})
    np.testing.assert_array_equal(z, np.abs(1 - a))
    np.testing.assert_array_equal(u, z)
    assert len(set(found.tolist())) == 1


@pytest.mark.parametrize("pairs", [((0, 2),), ((0, 0), (0, 1)), ((0, 0), (1, 0))])
def test_what_cannot_share_memory_is_a_bug(pairs: Pairs, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="share"):
        library(tmp_path, pairs)
