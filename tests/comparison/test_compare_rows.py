"""Which variants there are, and which size of a model's inputs is the batch."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortkit.comparison.batches import batch_axis, set_batch
from ortkit.comparison.rows import make_rows
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model

A, B = Path("a.onnx"), Path("b.onnx")


def test_every_row_differs_from_the_one_it_stands_against_in_one_thing() -> None:
    rows = make_rows([A, B], ["cpu", "cuda"], [1, 2], ["all", "off"])
    assert [row.number for row in rows] == list(range(1, 17))
    assert rows[0].against is None
    for row in rows[1:]:
        assert row.against is not None
        other = rows[row.against - 1]
        pairs = zip(settings(row), settings(other), strict=True)
        assert sum(mine != its for mine, its in pairs) == 1
        assert row.against < row.number


def settings(row: object) -> tuple[object, ...]:
    names = ("model", "provider", "threads", "optimizations")
    return tuple(getattr(row, name) for name in names)


def test_models_stand_against_the_first_under_the_same_setting() -> None:
    rows = make_rows([A, B, Path("c.onnx")], threads=[1, 2])
    assert [row.against for row in rows] == [None, 1, 1, 2, 1, 2]


def test_names_are_as_short_as_they_are_unique() -> None:
    same = [Path("/x/one/m.onnx"), Path("/x/two/m.onnx")]
    assert [row.name for row in make_rows(same)] == ["one/m.onnx", "two/m.onnx"]
    assert [row.name for row in make_rows([A, B])] == ["a.onnx", "b.onnx"]
    assert [row.name for row in make_rows([A, A])] == ["a.onnx", "a.onnx"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"threads": [2, 2]}, "threads: 2 is named twice"),
        ({"providers": ["cpu", "cpu"]}, "target: 'cpu' is named twice"),
        ({"providers": []}, "target: nothing is named"),
    ],
)
def test_what_is_named_twice_or_not_at_all_is_refused(given: dict[str, list], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_rows([A], **given)


# ---- batches -------------------------------------------------------------------------------


def opened(folder: Path, inputs: str):
    names = [part.split()[-1] for part in inputs.split("], ")]
    body = " ".join(f"y{i} = Identity({name})" for i, name in enumerate(names))
    outputs = ", ".join(f"float y{i}" for i in range(len(names)))
    text = f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => ({outputs}) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return open_model(folder / "m.onnx")


@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        ("float[batch, seq] ids, float[batch, total] mask", {"batch"}),
        ("float[N, 3, h, w] x", {"N"}),
        ("float[examples, 8] x", {"examples"}),
        ("float[batch, 8] x, float[other, 8] z", {"batch"}),  # the name decides
        ("float[seq] x, float[rows, seq] z", {"rows"}),
        ("float[batch] x, float[batch, 4] z", {"batch"}),
        ("float[seq, 1] x, float[2, seq] z", set()),
        ("float[n] x", {"n"}),
        ("float[seq] x", set()),
    ],
)
def test_the_batch_is_the_name_of_first_axes(inputs: str, names: set[str], tmp_path: Path) -> None:
    assert batch_axis(opened(tmp_path, inputs)).names == names


def test_a_fixed_batch_says_so(tmp_path: Path) -> None:
    axis = batch_axis(opened(tmp_path, "float[2, seq] x, float[2, 4] z"))
    assert axis.refusal(2) == ""
    assert axis.refusal(8) == "its batch is fixed at 2"
    lengths = batch_axis(opened(tmp_path, "float[seq] x"))
    assert lengths.refusal(2) == "no input has a batch axis"
    assert batch_axis(opened(tmp_path, "float[batch, 2] x")).refusal(8) == ""


def test_axes_without_a_name_are_set_in_the_model(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x) => (float y) '
        "{ y = Identity(x) }"
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    onnx.save(proto, tmp_path / "m.onnx")
    model = open_model(tmp_path / "m.onnx")
    axis = batch_axis(model)
    assert (axis.names, axis.unnamed, axis.problem) == (frozenset(), ("x",), "")
    set_batch(model, axis, 5)
    assert list(model.graph.inputs[0].shape) == [5, 4]
