"""Ops that are defined in Python, compiled into a library that any ONNX Runtime loads."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import ortkit
from ortkit.errors import RunError, UserError
from ortkit.extend.build.library import OpsBuild, build_ops
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.link.named_ops import MOST_ATTRIBUTES, MOST_INPUTS, NAMES_VERSION
from ortkit.runtime.python_ops import OPS

OPSET = '<opset_import: ["" : 20]> '
HEAD = '<ir_version: 10, opset_import: ["" : 20, "tests.native" : 1]> '
RANDOM = np.random.default_rng(0)


NATIVE = Path(__file__).parents[2] / "custom_ops" / "native"


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True, initial=-np.inf))
    return (e / e.sum(-1, keepdims=True)).astype(x.dtype)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, OpsBuild]]:
    before = dict(OPS)

    @ortkit.custom_op("tests.native::Scaled")
    def scaled(
        x: ortkit.Float["*shape"], *, alpha: float = 1.0, shift: int = 0
    ) -> ortkit.Float["*shape"]:
        return (np.maximum(x, 0) * np.asarray(alpha, x.dtype) + shift).astype(x.dtype)

    scaled.body(
        OPSET + "f <alpha: float = 1.0, shift: int = 0> (x) => (y) { r = Relu(x) "
        "a = Constant <value_float: float = @alpha> () b = CastLike(a, x) m = Mul(r, b) "
        "s = Constant <value_int: int = @shift> () t = CastLike(s, x) y = Add(m, t) }"
    )

    @ortkit.custom_op("tests.native::BiasSoftmax")
    def bias_softmax(
        x: ortkit.Float["*batch n"], b: ortkit.Float["n"] | None = None, *, axis: int = -1
    ) -> ortkit.Float["*batch n"]:
        return softmax(x if b is None else x + b)

    bias_softmax.body(
        OPSET + "f <axis: int = -1> (x, b) => (y) "
        "{ t = Add(x, b) y = Softmax <axis: int = @axis> (t) }"
    )
    bias_softmax.body(
        OPSET + "f <axis: int = -1> (x) => (y) { y = Softmax <axis: int = @axis> (x) }",
        without=["b"],
    )

    @ortkit.custom_op("tests.native::Parts", outputs=("high", "is_high"))
    def parts(
        x: ortkit.Float32["m 2*n"], y: ortkit.Float32["n"]
    ) -> tuple[ortkit.Float32["m 2*n"], ortkit.Bool["m 2*n"]]:
        return np.maximum(x, 1), x > 1

    parts.body(
        OPSET + "f (x, y) => (high, is_high) { one = Constant <value = float {1}> () "
        "high = Max(x, one) is_high = Greater(x, one) }"
    )
    path = tmp_path_factory.mktemp("ops") / "ops.so"
    cache = KernelCache(path.parent / "cache")
    ops = [op for op in OPS.values() if op.domain == "tests.native"]
    yield path, build_ops(ops, path, dtypes=["float32", "float16"], cache=cache)
    OPS.clear()
    OPS.update(before)


def test_the_header_and_the_generator_are_of_one_version() -> None:
    header = (NATIVE / "names.h").read_text()
    assert f"#define ORTKIT_NAMES_VERSION {NAMES_VERSION}\n" in header
    assert f"#define ORTKIT_MAX_ATTRIBUTES {MOST_ATTRIBUTES}\n" in header
    assert f"#define ORTKIT_MAX_TENSORS {MOST_INPUTS}\n" in (NATIVE / "manifest.h").read_text()


def test_a_body_may_be_a_model() -> None:
    @ortkit.custom_op("tests.model::Op")
    def op(x: ortkit.Float32["n"]) -> ortkit.Float32["n"]:
        return x * 3

    text = "g (float[n] x) => (float[n] y) <float w = {3}> { y = Mul(x, w) }"
    op.body(HEAD.replace(', "tests.native" : 1', "") + text)
    model = onnx.parser.parse_model(
        HEAD.replace("tests.native", "tests.model")
        + "g (float[n] x) => (float[n] y) { y = tests.model.Op(x) }"
    )
    with ortkit.Session(model) as one:
        assert one.libraries == ()
        np.testing.assert_array_equal(one.run({"x": np.float32([2])})["y"], [6])
    del OPS[("tests.model", "Op", 1)]


def session(path: Path, text: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(path))
    model = onnx.parser.parse_model(HEAD + text).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(path: Path, text: str, **feeds: np.ndarray) -> list[np.ndarray]:
    return session(path, text).run(None, feeds)


def test_every_form_is_built(built: tuple[Path, OpsBuild]) -> None:
    _, build = built
    assert build.library is not None
    assert build.library.ops == (
        "tests.native::BiasSoftmax", "tests.native::Parts", "tests.native::Scaled",
    )  # fmt: skip
    assert not build.refused
    forms = [form.text for form in build.built if form.op.name == "BiasSoftmax"]
    assert forms == ["float32", "float32 without b", "float16", "float16 without b"]


@pytest.mark.parametrize("shape", [(), (7,), (0,), (1, 1), (2, 3, 5), (2, 0, 5), (300, 70)])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_any_number_of_axes(
    built: tuple[Path, OpsBuild], shape: tuple[int, ...], dtype: str
) -> None:
    x = np.asarray(RANDOM.standard_normal(shape), {"float": np.float32}.get(dtype, np.float16))
    dims = f"[{','.join('abcdef'[i] for i in range(len(shape)))}]" if shape else ""
    text = f"g ({dtype}{dims} x) => (y) {{ y = tests.native.Scaled <alpha = 2.0, shift = 3> (x) }}"
    found = run(built[0], text, x=x)[0]
    assert found.shape == x.shape
    np.testing.assert_allclose(found, np.maximum(x, 0) * 2 + 3, rtol=2e-3)


def test_attributes_have_defaults(built: tuple[Path, OpsBuild]) -> None:
    x = np.float32([-1, 2])
    found = run(built[0], "g (float[n] x) => (y) { y = tests.native.Scaled(x) }", x=x)[0]
    np.testing.assert_array_equal(found, [0, 2])


def test_optional_inputs_may_be_absent(built: tuple[Path, OpsBuild]) -> None:
    x, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 9), (9,)))
    text = "g (float[k,m,n] x, float[n] b) => (y) { y = tests.native.BiasSoftmax(x, b) }"
    np.testing.assert_allclose(run(built[0], text, x=x, b=b)[0], softmax(x + b), rtol=1e-5)
    for absent in ("(x)", '(x, "")'):
        text = f"g (float[k,m,n] x) => (y) {{ y = tests.native.BiasSoftmax{absent} }}"
        if '""' in absent:
            model = onnx.parser.parse_model(HEAD + text.replace(', ""', ""))
            model.graph.node[0].input.append("")
            options = ort.SessionOptions()
            options.register_custom_ops_library(str(built[0]))
            found = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
        else:
            found = run(built[0], text, x=x)
        np.testing.assert_allclose(found[0], softmax(x), rtol=1e-5)


def test_shapes_are_known_before_a_run(built: tuple[Path, OpsBuild]) -> None:
    text = (
        "g (float[rows,6] x, float[3] v, float[a,2,c] z) => (h, q, s) "
        "{ h, q = tests.native.Parts(x, v) s = tests.native.Scaled(z) }"
    )
    outputs = session(built[0], text).get_outputs()
    assert [(output.type, output.shape) for output in outputs] == [
        ("tensor(float)", ["rows", 6]),
        ("tensor(bool)", ["rows", 6]),
        ("tensor(float)", ["a", 2, "c"]),
    ]


def test_outputs_that_nobody_reads(built: tuple[Path, OpsBuild]) -> None:
    x, y = np.float32([[0, 2]]), np.float32([1])
    text = "g (float[m,k] x, float[n] y) => (h) { h, q = tests.native.Parts(x, y) }"
    np.testing.assert_array_equal(run(built[0], text, x=x, y=y)[0], [[1, 2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "g (float[m,n] x) => (y) { y = tests.native.BiasSoftmax <axis = 0> (x) }",
            "tests.native::BiasSoftmax: this library has no kernel for the values of its attr",
        ),
        (
            "g (float[n] x) => (y) { y = tests.native.Scaled <alpha = 2> (x) }",
            "tests.native::Scaled: the attribute alpha is an integer, expected a float",
        ),
        ("g (int64[n] x) => (y) { y = tests.native.Scaled(x) }", "tensor.int64.*Scaled.*invalid"),
    ],
)
def test_models_that_do_not_fit(built: tuple[Path, OpsBuild], text: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        session(built[0], text)


def test_inputs_that_do_not_fit(built: tuple[Path, OpsBuild]) -> None:
    text = "g (float[m,k] x, float[n] y) => (h) { h, q = tests.native.Parts(x, y) }"
    x = np.ones((2, 6), np.float32)
    with pytest.raises(Exception, match=r"tests.native::Parts: input 'y' has size 4 in dim 0"):
        run(built[0], text, x=x, y=np.ones(4, np.float32))
    text = "g (float x) => (y) { y = tests.native.BiasSoftmax(x) }"
    with pytest.raises(Exception, match=r"input 'x' has rank 0, expected 1 or more"):
        run(built[0], text, x=np.array(1, np.float32))


def test_a_session_prefers_the_library_to_the_reference(
    built: tuple[Path, OpsBuild], tmp_path: Path
) -> None:
    text = "g (float[n] x) => (float[n] y) { y = tests.native.Scaled(x) }"
    model = onnx.parser.parse_model(HEAD + text)
    with ortkit.Session(model, libraries=[built[0]]) as one:
        assert one.libraries == (built[0],)
        np.testing.assert_array_equal(one.run({"x": np.float32([1])})["y"], [1])
    with pytest.raises(UserError, match="no such file"):
        ortkit.Session(model, libraries=[tmp_path / "other.so"])
    with pytest.raises(UserError, match="give a list"):
        ortkit.Session(model, libraries=str(built[0]))
    (tmp_path / "no.so").write_text("no library")
    with pytest.raises(RunError, match=r"libraries, .*no\.so"):
        ortkit.Session(model, libraries=[tmp_path / "no.so"])


def test_a_body_alone_runs_as_a_function(built: tuple[Path, OpsBuild]) -> None:
    """In half precision too, which onnxruntime-extensions does not pass to Python."""
    text = "g (float16[n] x) => (float16[n] y) { y = tests.native.Scaled <shift = 1> (x) }"
    with ortkit.Session(onnx.parser.parse_model(HEAD + text)) as one:
        assert one.libraries == ()
        np.testing.assert_array_equal(one.run({"x": np.float16([-1, 2])})["y"], [1, 3])


def test_every_pointwise_operator_takes_any_number_of_axes(tmp_path: Path, built: object) -> None:
    @ortkit.custom_op("tests.axes::Op")
    def op(x: ortkit.Float32["*s"]) -> ortkit.Float32["*s"]:
        return x

    op.body(OPSET + "f (x) => (y) { a = Asinh(x) m = IsInf(x) y = Where(m, x, a) }")
    assert build_ops([op], tmp_path / "x.so").library is not None
    del OPS[("tests.axes", "Op", 1)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f (x) => (y) { y = Transpose(x) }", "Transpose may depend on how many"),
        ("f (x) => (y) { y = Softmax <axis = 0> (x) }", "Softmax counts its own from there"),
        ("f (x) => (y) { y = ReduceSum(x) }", "ReduceSum counts its own from there"),
    ],
)
def test_bodies_that_depend_on_the_number_of_axes(
    body: str, message: str, tmp_path: Path, built: object
) -> None:
    @ortkit.custom_op("tests.other::Op")
    def op(x: ortkit.Float32["*s n"]) -> ortkit.Float32["*s n"]:
        return x

    op.body(OPSET + body)
    build = build_ops([op], tmp_path / "x.so")
    assert build.library is None and not (tmp_path / "x.so").exists()
    assert message in build.refused[0][2]
    del OPS[("tests.other", "Op", 1)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("f (x, z) => (y) { y = Add(x, z) }", "its body has 2 inputs, declared are 1"),
        ("f (x) => (y, z) { y = Relu(x) z = Relu(x) }", "its body has 2 outputs"),
        ("f <b> (x) => (y) { y = Relu(x) }", "has an attribute 'b', which is not declared"),
        ("f (x) => (y) { y = Relu(x }", "does not parse"),
        (3, "int is no body"),
    ],
)
def test_bodies_that_are_none(body: object, message: str, built: object) -> None:
    @ortkit.custom_op("tests.other::Op")
    def op(x: ortkit.Float32["n"]) -> ortkit.Float32["n"]:
        return x

    with pytest.raises(UserError, match=message):
        op.body(OPSET + body if isinstance(body, str) else body)
    del OPS[("tests.other", "Op", 1)]
