"""Sizes that are products: told by shapes, named before a run, handed to the kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import pytest

from ortkit.kernels.backend import Launch
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent
from tests.kernels.fused_model import fused_model, session
from tests.native.c_kernel import library_of_c

# Writes each size that it was given, as often as the output has room; all in one unit.
SOURCE = """
#include <stdint.h>
int32_t probe(const float* x, const float* w, float* y, int64_t s0, int64_t s1, int64_t begin,
              int64_t end) {
  (void)x, (void)w;
  for (int64_t i = 0; begin < end && i < 2 * s0 * s1; ++i) y[i] = (float)(i % 2 ? s1 : s0);
  return 0;
}
"""
BODY = """<opset_import: ["" : 20]> f (X, W) => (Y) {
  M = Concat <axis = 0> (X, W)  Y = Neg (M)
}"""


def region(x: tuple[int | str, ...], w: tuple[int | str, ...]) -> RegionSignature:
    """Whose sizes are a and b, in this order, and whose output is [2*a*b]."""
    inputs = (TensorSpec("X", "float32", x), TensorSpec("W", "float32", w))
    return RegionSignature("probe", BODY, inputs, (TensorSpec("Y", "float32", ("2*a*b",)),))


def library(folder: Path, signature: RegionSignature) -> Path:
    return library_of_c(folder, SOURCE, signature, Launch((Extent(1),), Extent(1), 100))


def model(signature: RegionSignature, *dims: int | str | None) -> bytes:
    """The region's model whose inputs have other dims, X's first."""
    made = onnx.load_from_string(fused_model(signature))
    given = iter(dims)
    for value in made.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
            size = next(given)
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    return made.SerializeToString()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("N", "T"), "2*N*T"),
        ((4, "T"), "8*T"),
        (("N", 3), "6*N"),
        ((4, 3), 24),
        ((0, "T"), 0),
        (("N", "N"), "2*N*N"),
        (("past + 1", "T"), "2*(past + 1)*T"),
        (("x-1", "a.b:c_1"), "2*(x-1)*a.b:c_1"),
    ],
)
def test_a_product_is_named_by_the_model_s_own_names(
    given: tuple[int | str, int | str], named: int | str, tmp_path: Path
) -> None:
    signature = region(("a", 1), ("b",))
    made = model(signature, given[0], 1, given[1])
    assert session(made, library(tmp_path, signature)).get_outputs()[0].shape == [named]


def test_a_name_that_is_too_long_is_not_cut(tmp_path: Path) -> None:
    signature = region(("a",), ("b",))
    one, other = (
        onnx.load_from_string(model(signature, "n" * 150, "n" * 150 + last)) for last in "xy"
    )
    graph = onnx.compose.add_prefix_graph(other.graph, "other_")
    for values, added in zip(
        (one.graph.node, one.graph.input, one.graph.output),
        (graph.node, graph.input, graph.output),
        strict=True,
    ):
        values.extend(added)
    outputs = session(one.SerializeToString(), library(tmp_path, signature)).get_outputs()
    names = [name for output in outputs for name in output.shape]
    assert len(names) == 2
    assert all(isinstance(name, str) and signature.op_type in name for name in names)
    assert names[0] != names[1], "equal names promise equal sizes"


def test_an_equal_product_of_an_input_lends_its_name(tmp_path: Path) -> None:
    signature = region(("2*a*b",), ("a",))
    loaded = session(model(signature, "tokens", "N"), library(tmp_path, signature))
    assert loaded.get_outputs()[0].shape == ["tokens"]


@pytest.mark.parametrize(
    ("x", "w", "sizes"),
    [
        (("a",), ("b",), (3, 5)),
        (("2*a",), ("3*b",), (6, 15)),
        (("a*b",), ("b",), (15, 5)),
        (("2*a*b", "a"), ("b",), (30, 3, 5)),
    ],
)
def test_symbols_are_told_by_products(
    x: tuple[str, ...], w: tuple[str, ...], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    signature = region(x, w)
    loaded = session(model(signature, *[None] * len(sizes)), library(tmp_path, signature))
    feeds = {
        "X": np.zeros(sizes[: len(x)], np.float32),
        "W": np.zeros(sizes[len(x) :], np.float32),
    }
    (found,) = loaded.run(None, feeds)
    assert found.tolist() == [3.0, 5.0] * 15


@pytest.mark.parametrize(
    ("x", "w", "sizes", "reason"),
    [
        (("2*a",), ("b",), (7, 5), "input 'X' has size 7 in dim 0, and '2*a' is 6 elsewhere"),
        (("a*b",), ("b",), (16, 5), "input 'X' has size 16 in dim 0, and 'a*b' is 15 elsewhere"),
        (("a", "b", "a*b"), (1,), (2, 3, 7, 1), "size 7 in dim 2, and 'a*b' is 6 elsewhere"),
        (("a*b",), ("b",), (16, 0), "input 'X' has size 16 in dim 0, and 'a*b' is 0 elsewhere"),
    ],
)
def test_products_that_do_not_fit_are_refused(
    x: tuple[str, ...],
    w: tuple[int | str, ...],
    sizes: tuple[int, ...],
    reason: str,
    tmp_path: Path,
) -> None:
    signature = region(x, w)
    loaded = session(model(signature, *[None] * len(sizes)), library(tmp_path, signature))
    feeds = {
        "X": np.zeros(sizes[: len(x)], np.float32),
        "W": np.zeros(sizes[len(x) :], np.float32),
    }
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as error:
        loaded.run(None, feeds)
    assert f"{signature.op_type}: " in str(error.value)
    assert reason in str(error.value)


def test_what_no_input_tells_is_a_factor_of_nothing(tmp_path: Path) -> None:
    signature = region(("a*b",), ("b",))
    loaded = session(model(signature, None, None), library(tmp_path, signature))
    (found,) = loaded.run(None, {"X": np.zeros(0, np.float32), "W": np.zeros(0, np.float32)})
    assert found.shape == (0,)


def test_sizes_beyond_63_bits_are_refused(tmp_path: Path) -> None:
    """Tensors without elements have no memory to bound their dims."""
    signature = region(("a", 0), ("b", 0))
    loaded = session(model(signature, None, 0, None, 0), library(tmp_path, signature))
    huge = np.zeros((2**40, 0), np.float32)
    with pytest.raises(Exception, match="the size of output 'Y' in dim 0 exceeds 63 bits"):
        loaded.run(None, {"X": huge, "W": huge})
