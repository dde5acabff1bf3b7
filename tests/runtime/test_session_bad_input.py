"""What sessions answer to feeds, settings and bindings that do not fit: one line, no guess."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ortkit import Session
from ortkit.errors import UserError
from tests.runtime.session_models import ADD, OPTIONAL, SEQUENCE, STRINGS, TANH, model

ONES = np.ones(2, np.float32)
INT4 = """<ir_version: 10, opset_import: ["" : 21]>
g (int4[n] x) => (float[n] y) { y = Cast<to = 1>(x) }
"""
FLOAT8 = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (float8e4m3fn[m] y) { y = Cast<to = 17>(x) }
"""
SEQUENCE_OUT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (seq(float[m]) y) { y = SplitToSequence<axis = 0>(x) }
"""


@pytest.mark.parametrize("feeds", [[ONES, ONES], [[ONES, ONES]], {"x": (ONES, ONES)}])
def test_a_sequence_is_given_in_any_way(feeds: Any) -> None:
    with Session(model(SEQUENCE), "cpu") as session:
        assert session.run(feeds)["y"].tolist() == [1, 1, 1, 1]


def test_tensors_of_a_sequence_are_read_as_others_are() -> None:
    given = np.array([1, 2], ">f4")  # of the other byte order
    with Session(model(SEQUENCE), "cpu") as session:
        assert session.run({"x": [given, [3]]})["y"].tolist() == [1, 2, 3]
        assert session.run({"x": [np.array([4.0])]}, cast=True)["y"].tolist() == [4]


@pytest.mark.parametrize(
    ("text", "value", "problem"),
    [
        (SEQUENCE, [ONES, ONES.astype(np.float64)], r"'x\[1\]' is float64"),
        (SEQUENCE, [ONES, "word"], r"'x\[1\]' is str"),
        (SEQUENCE, ONES, "'x' is ndarray, no list"),
        (OPTIONAL, ONES.astype(np.float64), "'x' is float64"),
        (INT4, np.ones(2, np.int8), r"no arrays of tensor\(int4\)"),
    ],
)
def test_types_that_do_not_fit(text: str, value: Any, problem: str) -> None:
    with Session(model(text), "cpu") as session, pytest.raises(UserError, match=problem):
        session.run({"x": value})


@pytest.mark.parametrize(
    ("shape", "problem"),
    [((-2, 4), "is no shape"), ((2**44, 4), "no room"), ((2**62, 4), "no room")],
)
def test_shapes_that_cannot_be_reserved(shape: tuple[int, ...], problem: str) -> None:
    with Session(model(ADD), "cpu") as session, pytest.raises(UserError, match=problem):
        session.bind({"x": shape, "z": shape})


def test_inputs_of_a_binding_may_be_a_list_too() -> None:
    value = np.ones((2, 4), np.float32)
    with Session(model(ADD), "cpu") as session:
        assert session.bind([value, value]).run()["y"].tolist() == [[2.0] * 4] * 2


@pytest.mark.parametrize(
    ("text", "value", "problem"),
    [(SEQUENCE, [ONES], "sequences"), (STRINGS, np.array(["a"], object), "strings")],
)
def test_what_cannot_be_shared_is_not_bound(text: str, value: Any, problem: str) -> None:
    with Session(model(text), "cpu") as session, pytest.raises(UserError, match=problem):
        session.bind({"x": value})


def test_bound_outputs_that_are_no_arrays() -> None:
    with Session(model(SEQUENCE_OUT), "cpu") as session:
        assert [part.tolist() for part in session.bind({"x": ONES}).run()["y"]] == [[1], [1]]
    with Session(model(FLOAT8), "cpu") as session:
        assert session.bind({"x": ONES}).run()["y"].data_type() == "tensor(float8e4m3fn)"


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        (lambda: Session(model(TANH), 3), "3 names no provider"),  # type: ignore[arg-type]
        (lambda: Session(model(TANH), [("cpu", None)]), "names no provider"),  # type: ignore[list-item]
        (lambda: Session(model(TANH), "cpu", log_severity=9), "9 is not known"),
        (lambda: Session(model(TANH), "cpu", free_dimensions={"n": -1}), "-1 is no size"),
        (lambda: Session(model(TANH), "cpu", config={1: "a"}), "1 is no entry"),  # type: ignore[dict-item]
        (lambda: Session(model(TANH), "cpu").twin(thread=1), "'thread' is no setting"),
    ],
)
def test_settings_that_are_none(ask: Callable[[], Session], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        ask()


@pytest.mark.parametrize("outputs", [[], 3])
def test_no_output_at_all(outputs: object) -> None:
    feeds = {"x": np.ones((1, 4), np.float32)}
    with Session(model(TANH), "cpu") as session, pytest.raises(UserError, match="no output is"):
        session.run(feeds, outputs)  # type: ignore[arg-type]
