"""Memory that is bound is what runs read and write."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import ortkit
from ortkit.errors import UserError
from tests.runtime import session_models as models

ONES = np.ones((2, 4), np.float32)


def session(text: str) -> ortkit.Session:
    return ortkit.Session(models.model(text), "cpu", threads=1)


def test_arrays_are_shared_and_not_copied() -> None:
    x, z, y = ONES.copy(), ONES.copy(), np.zeros_like(ONES)
    with session(models.ADD) as one:
        bound = one.bind({"x": x, "z": z}, {"y": y})
        for value in (3.0, -1.0):
            x[...] = value
            assert bound.run()["y"] is y
            np.testing.assert_array_equal(y, x + z)


def test_memory_is_reserved_where_sizes_follow_from_the_inputs() -> None:
    with session(models.ADD) as one:
        bound = one.bind({"x": (3, 4), "z": np.ones((3, 4), np.float32)})
        bound.update(x=np.full((3, 4), 2, np.float32))
        first = bound.run()["y"]
        np.testing.assert_array_equal(first, np.full((3, 4), 3))
        bound.inputs["x"][...] = 5
        assert bound.run()["y"] is first
        assert first[0, 0] == 6


def test_outputs_whose_size_is_not_known_before() -> None:
    with session(models.NONZERO) as one:
        x = np.array([0, 1, 1, 0], np.float32)
        bound = one.bind({"x": x})
        assert bound.run()["y"].tolist() == [[1, 2]]
        x[0] = 1
        assert bound.run()["y"].tolist() == [[0, 1, 2]]


def test_some_outputs_only() -> None:
    with session(models.TWO_OUTPUTS) as one:
        assert list(one.bind({"x": ONES}, ["s"]).run()) == ["s"]
        both = one.bind({"x": ONES}, {"s": np.zeros(2, np.int64)}).run()
        assert both["s"].tolist() == [2, 4]
        np.testing.assert_allclose(both["y"], np.tanh(ONES), rtol=1e-6)


def test_ortvalues_are_bound_as_they_are() -> None:
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type([2, 4], np.float32)
    x = onnxruntime.OrtValue.ortvalue_from_numpy(ONES)
    with session(models.TANH) as one:
        assert one.bind({"x": x}, {"y": y}).run()["y"] is y
        np.testing.assert_allclose(y.numpy(), np.tanh(ONES), rtol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "outputs", "problem"),
    [
        ({"x": ONES}, None, "input 'z' missing"),
        ({"x": ONES, "z": ONES, "q": ONES}, None, "there is no input 'q'"),
        ({"x": ONES, "z": (3, 4)}, None, "size 'n' is 2 in 'x' and 3 in 'z'"),
        ({"x": ONES, "z": ONES.T.copy().T}, None, "is not contiguous"),
        ({"x": ONES, "z": ONES}, {"y": np.zeros((2, 4))}, "is float64, the model writes"),
        ({"x": ONES, "z": ONES}, {"y": [1, 2]}, "list is no memory"),
        ({"x": ONES, "z": ONES}, {"q": ONES}, "there is no output 'q'"),
        ({"x": ONES, "z": ONES}, {"y": np.zeros((3, 4), np.float32)}, "has shape [3, 4]"),
    ],
)
def test_what_cannot_be_bound(inputs: Any, outputs: Any, problem: str) -> None:
    with session(models.ADD) as one, pytest.raises(UserError) as caught:
        one.bind(inputs, outputs)
    assert problem in str(caught.value)


def test_updates_are_checked() -> None:
    with session(models.TANH) as one:
        bound = one.bind({"x": (2, 4)})
        with pytest.raises(UserError, match="bound is"):
            bound.update(x=ONES[:1])
        with pytest.raises(UserError, match="there is no input 'w'"):
            bound.update(w=ONES)
        with pytest.raises(UserError, match="float64"):
            bound.update(x=ONES.astype(np.float64))


def test_a_closed_binding_says_so() -> None:
    with session(models.TANH) as one:
        bound = one.bind({"x": ONES})
        bound.close()
        with pytest.raises(UserError, match="the binding is closed"):
            bound.run()
