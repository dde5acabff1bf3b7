"""lower-cubic-resize beside ONNX Runtime: scales, sizes, axes, modes of coordinates."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ortkit.passes.select import select_passes
from tests.passes.graphs import Graph, feeds_of, kinds, rewritten, run


def resize(opset: int, sizes: tuple[int, ...] | None, **attributes: object) -> onnx.ModelProto:
    graph = Graph(opset=opset)
    x = graph.input("n", 3, 7, 9)
    region = "" if opset >= 13 else graph.data(np.zeros(0))
    given = [region, graph.data([2.5, 1.7] if "axes" in attributes else [1, 1, 2.5, 1.7])]
    if sizes:
        given = [region, region, graph.ints(*sizes)]
    return graph.model(graph.op("Resize", x, *given, mode="cubic", **attributes))


CASES: list[tuple[int, tuple[int, ...] | None, dict[str, object]]] = [
    (11, None, {}),
    (13, None, {"coordinate_transformation_mode": "asymmetric", "cubic_coeff_a": -0.5}),
    (13, None, {"exclude_outside": 1}),
    (18, None, {"axes": [2, 3]}),
    (19, None, {"axes": [-1, -2], "coordinate_transformation_mode": "align_corners"}),
    (19, (3, 11), {"axes": [2, 3]}),
    (19, (3, 4), {"axes": [2, 3], "antialias": 1}),
]


@pytest.mark.parametrize(("opset", "sizes", "attributes"), CASES)
def test_same_pixels(
    opset: int, sizes: tuple[int, ...] | None, attributes: dict[str, object]
) -> None:
    before = resize(opset, sizes, **attributes)
    after, _ = rewritten(before, select_passes("lower-cubic-resize", level=2))
    assert [kind for kind in kinds(after) if kind == "MatMul"] == ["MatMul", "MatMul"]
    feeds = feeds_of(before)
    (want,), (got,) = run(before, feeds), run(after, feeds)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5), (0, 0, 4, 5), (1, 1, 4, 5)])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 3, 2), (1, 1, 2, 1)])
@pytest.mark.parametrize("opset", [11, 18])
def test_empty_images(shape: tuple[int, ...], scales: tuple[int, ...], opset: int) -> None:
    graph = Graph(opset=opset)
    region = graph.data(np.zeros(0)) if opset < 13 else ""
    x = graph.input("n", "c", 4, 5)
    before = graph.model(graph.op("Resize", x, region, graph.data(scales), mode="cubic"))
    after, _ = rewritten(before, select_passes("lower-cubic-resize", level=2))
    assert "Resize" not in kinds(after)
    feeds = {name: np.ones(shape, np.float32) for name in feeds_of(before)}
    (want,), (got,) = run(before, feeds), run(after, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


def test_images_that_are_there_read_one_copy_of_the_weights() -> None:
    graph = Graph(opset=13)
    x = graph.input(1, 3, 4, 5)
    before = graph.model(graph.op("Resize", x, "", graph.data([1, 1, 2, 3]), mode="cubic"))
    after, _ = rewritten(before, select_passes("lower-cubic-resize", level=2))
    assert kinds(after) == ["MatMul", "MatMul"]


def test_pixels_that_are_left_out() -> None:
    """A single row takes the first of three: its weights begin as an identity does."""
    graph = Graph(opset=13)
    scales = graph.data([1, 1, 0.5, 3])
    mode = {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}
    before = graph.model(graph.op("Resize", graph.input("n", 2, 3, 3), "", scales, **mode))
    after, _ = rewritten(before, select_passes("lower-cubic-resize", level=2))
    assert [kind for kind in kinds(after) if kind == "MatMul"] == ["MatMul", "MatMul"]
    feeds = feeds_of(before)
    (want,), (got,) = run(before, feeds), run(after, feeds)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
