"""Ops that are defined in Python: declared, called, and run in a session."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.errors import RunError, UserError
from ortkit.runtime.python_ops import OPS

HEAD = '<ir_version: 10, opset_import: ["" : 20, "tests.py" : 1]> '
X = np.array([[1, -2, 3]], np.float32)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Forget the ops that a test declares."""
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def declared(name: str = "Square") -> ortkit.CustomOp:
    @ortkit.custom_op(f"tests.py::{name}")
    def square(x: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
        return np.square(x)

    return square


def run(text: str, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    with ortkit.Session(onnx.parser.parse_model(HEAD + text)) as session:
        return session.run(feeds)


def test_a_declared_op_runs_in_a_session_at_once() -> None:
    declared()
    text = "g (float[N,M] x) => (float[N,M] y) { t = tests.py.Square(x)  y = tests.py.Square(t) }"
    np.testing.assert_array_equal(run(text, x=X)["y"], X**4)
    assert run(text, x=X[:0])["y"].shape == (0, 3)


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_each_element_type_that_is_declared_runs(dtype: str) -> None:
    declared()
    numpy_dtype = {"float": np.float32, "double": np.float64}[dtype]
    text = f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = tests.py.Square(x) }}"
    found = run(text, x=X[0].astype(numpy_dtype))["y"]
    np.testing.assert_array_equal(found, X[0].astype(numpy_dtype) ** 2)
    assert found.dtype == numpy_dtype


def test_optional_inputs_attributes_and_several_outputs() -> None:
    @ortkit.custom_op("tests.py::Linear", outputs=("y", "mask"))
    def linear(
        x: ortkit.Float["*batch m"],
        w: ortkit.Float["m n"],
        b: ortkit.Float["n"] | None = None,
        *,
        scale: float = 1.0,
        shape: tuple[int, ...] = (),
    ) -> tuple[ortkit.Float["*batch n"], ortkit.Bool["*batch n"]]:
        y = x @ w * np.asarray(scale, x.dtype)
        y = y if b is None else y + b
        return y, y > 0

    w, b = np.ones((3, 2), np.float32), np.array([1, -9], np.float32)
    text = "g (float[N,M] x, float[M,K] w, float[K] b) => (float[N,K] y, bool[N,K] z) "
    found = run(text + "{ y, z = tests.py.Linear <scale = 2.0> (x, w, b) }", x=X, w=w, b=b)
    np.testing.assert_array_equal(found["y"], [[5, -5]])
    np.testing.assert_array_equal(found["z"], [[True, False]])
    # Neither the input, nor the attribute, nor the second output.
    text = text.replace(", bool[N,K] z", "")
    found = run(text + "{ y = tests.py.Linear(x, w) }", x=X, w=w, b=b)
    np.testing.assert_array_equal(found["y"], [[2, 2]])


def test_any_number_of_inputs() -> None:
    @ortkit.custom_op("tests.py::Total")
    def total(*xs: ortkit.Int["n"]) -> ortkit.Int["n"]:
        return sum(xs[1:], xs[0])

    x = np.array([1, 2])
    for count in (1, 2, 5):
        inputs = ", ".join(["x"] * count)
        text = f"g (int64[N] x) => (int64[N] y) {{ y = tests.py.Total({inputs}) }}"
        np.testing.assert_array_equal(run(text, x=x)["y"], count * x)


def test_what_a_reference_raises_fails_the_run_and_not_the_process() -> None:
    @ortkit.custom_op("tests.py::Bad")
    def bad(x: ortkit.Float["n"]) -> ortkit.Float["n"]:
        if x[0] > 0:
            raise ValueError("boom")
        return x

    model = onnx.parser.parse_model(
        HEAD + "g (float[N] x) => (float[N] y) { y = tests.py.Bad(x) }"
    )
    with ortkit.Session(model) as session:
        with pytest.raises(
            RunError, match=r"tests.py::Bad: its reference raised ValueError: boom"
        ):
            session.run({"x": np.ones(2, np.float32)})
        # The session goes on.
        np.testing.assert_array_equal(session.run({"x": -np.ones(2, np.float32)})["y"], [-1, -1])


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x.astype(np.float64), "returned float64, declared is Float, which is float32"),
        (lambda x: x[:1], r"returned the shape \[1\], declared is Float\[n\], which is \[3\]"),
        (lambda x: (x, x), "returned 2 results, declared are 1"),
    ],
)
def test_a_reference_that_contradicts_its_declaration(result, message: str) -> None:
    @ortkit.custom_op("tests.py::Wrong")
    def wrong(x: ortkit.Float["n"]) -> ortkit.Float["n"]:
        return result(x)

    with pytest.raises(UserError, match=message):
        wrong(X[0])
    with pytest.raises(UserError, match=message):
        run("g (float[N] x) => (float[N] y) { y = tests.py.Wrong(x) }", x=X[0])


def test_inputs_that_do_not_fit() -> None:
    @ortkit.custom_op("tests.py::Pair")
    def pair(x: ortkit.Float["*s n"], y: ortkit.Float["2*n"]) -> ortkit.Float["*s n"]:
        return x

    assert pair(X, np.ones(6, np.float32)).shape == (1, 3)
    with pytest.raises(UserError, match=r"y: a size is 5, and 2\*n is 6"):
        pair(X, np.ones(5, np.float32))
    with pytest.raises(UserError, match=r"y is float64, and Float is float32 elsewhere"):
        pair(X, np.ones(6))
    with pytest.raises(UserError, match=r"x has 0 axes, and Float\[\*s, n\] has 1 or more"):
        pair(np.float32(1), np.ones(6, np.float32))
    with pytest.raises(UserError, match=r"the input y is missing"):
        pair(X)
    with pytest.raises(UserError, match=r"x is int64, and Float is float32 or float64"):
        pair(np.ones((1, 3), np.int64), np.ones(6, np.float32))


def no_type(x): ...
def untold(x: ortkit.Float["n"]) -> ortkit.Float["m"]: ...
def no_default(x: ortkit.Float["n"], b: ortkit.Float["n"] | None) -> ortkit.Float["n"]: ...
def list_attribute(x: ortkit.Float["n"], *, a: dict) -> ortkit.Float["n"]: ...  # type: ignore[type-arg]
def wrong_default(x: ortkit.Float["n"], *, a: int = 0.5) -> ortkit.Float["n"]: ...  # type: ignore[assignment]
def no_result(x: ortkit.Float["n"]): ...
def keywords(x: ortkit.Float["n"], **a: ortkit.Float["n"]) -> ortkit.Float["n"]: ...
def odd_size(x: ortkit.Float["n-1"]) -> ortkit.Float["n"]: ...
def type_untold(x: ortkit.Int["n"]) -> ortkit.Float["n"]: ...
def unknown(x: Flaot["n"]) -> ortkit.Float["n"]: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_type, "x is not annotated as a tensor"),
        (untold, "no input that is always there tells the size 'm' of y"),
        (no_default, "b is half optional"),
        (list_attribute, "the attribute a has no type that ONNX has"),
        (wrong_default, "the attribute a cannot be 0.5"),
        (no_result, "its result is not annotated"),
        (keywords, "declares nothing"),
        (odd_size, "'n-1' is no size"),
        (type_untold, "no input that is always there tells the type of y"),
        (unknown, "its annotations name 'Flaot'"),
    ],
)
def test_signatures_that_declare_no_op(function, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ortkit.custom_op("tests.py::X")(function)


@pytest.mark.parametrize("name", ["Name", "a::b::c", "ai.onnx::Relu", "ortkit.fused::A", ""])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(UserError):
        ortkit.custom_op(name)


def test_the_version_of_the_domain_decides() -> None:
    declared()

    @ortkit.custom_op("tests.py::Square", version=3)
    def newer(x: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
        return np.square(x) + 1

    text = "g (float[N] x) => (float[N] y) { y = tests.py.Square(x) }"
    np.testing.assert_array_equal(run(text, x=X[0])["y"], X[0] ** 2)
    model = onnx.parser.parse_model(HEAD.replace('py" : 1', 'py" : 3') + text)
    with ortkit.Session(model) as session:
        np.testing.assert_array_equal(session.run({"x": X[0]})["y"], X[0] ** 2 + 1)


def test_a_model_on_disk_keeps_its_weights(tmp_path: Path) -> None:
    declared()
    model = onnx.parser.parse_model(
        HEAD + "g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> "
        "{ t = Add(x, w)  y = tests.py.Square(t) }"
    )
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0
    )
    with ortkit.Session(tmp_path / "m.onnx") as session:
        np.testing.assert_array_equal(session.run({"x": X[0]})["y"], [4, 0, 36])


def test_a_node_without_its_attribute_is_refused_in_one_line() -> None:
    @ortkit.custom_op("tests.py::Scale")
    def scale(x: ortkit.Float["n"], *, by: float) -> ortkit.Float["n"]:
        return x * np.asarray(by, x.dtype)

    text = "g (float[N] x) => (float[N] y) "
    np.testing.assert_array_equal(
        run(text + "{ y = tests.py.Scale <by = 2.0> (x) }", x=X[0])["y"], 2 * X[0]
    )
    with pytest.raises(UserError, match=r"tests.py::Scale: the attribute by is missing"):
        run(text + "{ y = tests.py.Scale(x) }", x=X[0])
    with pytest.raises(UserError, match=r"there is no attribute 'bye'"):
        run(text + "{ y = tests.py.Scale <bye = 2.0> (x) }", x=X[0])
