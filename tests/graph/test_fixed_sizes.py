"""Named sizes become numbers, names stay."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortkit import OptimizeOptions, optimize
from ortkit.errors import UserError
from ortkit.graph.io.text import from_text
from ortkit.graph.shapes.fixed import fix_sizes

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[b, past, 4] k, float[b, n, 4] x) => (float[b, total, 4] y)
    { y = Concat <axis = 1> (k, x) }"""


def shapes(sizes: dict[str, int]) -> list[list[object]]:
    model = from_text(TEXT)
    model.graph.outputs[0].shape = ir.Shape(["b", "past + n", 4])
    fix_sizes(model, sizes)
    values = (*model.graph.inputs, *model.graph.outputs)
    assert [value.name for value in values] == ["k", "x", "y"]
    return [
        [dim if isinstance(dim, int) else dim.value for dim in value.shape or ()]
        for value in values
    ]


def test_sizes_and_what_follows_from_them_are_numbers() -> None:
    assert shapes({"b": 2, "past": 3, "n": 1}) == [[2, 3, 4], [2, 1, 4], [2, 4, 4]]
    assert shapes({"past": 3}) == [["b", 3, 4], ["b", "n", 4], ["b", "n + 3", 4]]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"m": 1}, "no input has a size named 'm'; choose one of b, n, past"),
        ({"b": -1}, "size -1 is negative"),
        ({"b": 10**23}, "is more than a tensor has"),
        ({"x[1]": 3}, "no input has a size named 'x.1.'; choose one of b, n, past"),
    ],
)
def test_what_cannot_be_fixed_is_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        fix_sizes(from_text(TEXT), sizes)


def test_the_result_of_optimize_has_them() -> None:
    options = OptimizeOptions(fixed_shapes={"b": 2, "n": 1}, kernels="off")
    result = optimize(from_text(TEXT), options)
    assert [str(dim) for dim in result.model.graph.inputs[1].shape or ()] == ["2", "1", "4"]
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes"


def test_a_size_without_a_name_is_fixed_by_its_place() -> None:
    model = from_text(TEXT)
    x = model.graph.inputs[1]
    x.shape = ir.Shape([None, None, 4])
    result = optimize(model, OptimizeOptions(fixed_shapes={"x[1]": 3}, kernels="off"))
    assert [str(dim) for dim in result.model.graph.inputs[1].shape or ()] == ["None", "3", "4"]
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes"
