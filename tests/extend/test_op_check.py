"""`check_op`: what is wrong with an op's reference, body or kernel is found and named."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.extend.check import op_check
from ortkit.extend.check.guarded import call_guarded
from ortkit.extend.check.op_cases import cases_of
from ortkit.extend.check.op_check import OpCheck, check_op
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import ONE, Extent
from ortkit.runtime.python_ops import OPS
from ortkit.targets.target import Target

OPSET = '<opset_import: ["" : 20]> '


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def declared(body: str = "t = Add(x, b) y = Relu(t)", inputs: str = "x, b") -> ortkit.CustomOp:
    @ortkit.custom_op("tests.check::BiasRelu")
    def bias_relu(x: ortkit.Float["*batch n"], b: ortkit.Float["n"]) -> ortkit.Float["*batch n"]:
        return np.maximum(x + b, 0)

    bias_relu.body(f"{OPSET} f ({inputs}) => (y) {{ {body} }}")
    return bias_relu


def check(op: ortkit.CustomOp) -> OpCheck:
    return check_op(op, dtypes=["float32"])


def test_an_op_that_is_right() -> None:
    found = check(declared())
    assert found.faults == ()
    assert found.notes == ()
    assert found.cases == found.bodies == found.kernels > 12


def test_cases_have_awkward_sizes() -> None:
    op = declared()
    shapes = {case.inputs[0].shape for case in cases_of(op, {"Float": "float32"}, (True, True))}
    assert {(7,), (3, 0), (3, 1), (0, 7), (3, 17), (3, 4099), (2, 3, 7)} <= shapes


@pytest.mark.parametrize(
    ("body", "what"),
    [("t = Sub(x, b) y = Relu(t)", "off by"), ("t = Add(x, b) y = Abs(t)", "off by")],
)
def test_a_body_that_differs(body: str, what: str) -> None:
    found = check(declared(body))
    assert {fault.what for fault in found.faults} == {"body", "kernel"}
    assert all(what in fault.problem for fault in found.faults)
    assert str(found.faults[0]).startswith("tests.check::BiasRelu: body: y: off by")


def test_a_reference_that_contradicts_its_shape() -> None:
    @ortkit.custom_op("tests.check::Keep")
    def keep(x: ortkit.Float["*batch n"]) -> ortkit.Float["*batch n"]:
        return x.sum(-1, keepdims=True)

    (fault, *_) = check(keep).faults
    assert fault.what == "reference"
    assert "returned the shape [3, 1], declared is Float[*batch, n]" in fault.problem
    assert "float32 x[3, 7]" in str(fault)


def test_types_without_a_kernel_are_noted_and_no_fault() -> None:
    @ortkit.custom_op("tests.check::Exp")
    def exp(x: ortkit.Float64["n"]) -> ortkit.Float64["n"]:
        return np.exp(x)

    exp.body(OPSET + "f (x) => (y) { y = Exp(x) }")
    found = check_op(exp)
    assert found.faults == () and found.kernels == 0 < found.bodies
    assert any("no kernel for float64" in note for note in found.notes)


KERNELS = {
    "right": ("for (long i = begin; i < end; ++i) y[i] = x[i];", ""),
    "writes behind": ("for (long i = begin; i <= end; ++i) y[i] = x[i];", "out of bounds"),
    "writes before": ("for (long i = begin; i < end; ++i) y[i - 1] = 0;", "beside|bounds"),
    "reads behind": (
        "for (long i = begin; i < end; ++i) y[i] = ((volatile float*)x)[i + 1];", "out of bounds",
    ),
    "writes its input": ("for (long i = begin; i < end; ++i) y[i] = x[i] = 0;", "its input"),
    "depends on the cut": ("for (long i = begin; i < end; ++i) y[i] = end;", "cut in two"),
    "fails": ("return 7;", "it returned 7"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(KERNELS))
def test_kernels_are_called_with_guarded_memory(name: str, tmp_path: Path) -> None:
    import subprocess

    @ortkit.custom_op("tests.check::Copy")
    def copy(x: ortkit.Float32["n"]) -> ortkit.Float32["n"]:
        return x

    copy.body(OPSET + "f (x) => (y) { y = Identity(x) }")
    (form,) = forms_of(copy)
    assert isinstance(form, Form)
    code, problem = KERNELS[name]
    source = tmp_path / "kernel.c"
    source.write_text(
        f"int copy(float* x, float* y, long n, long begin, long end) {{ {code} return 0; }}"
    )
    artifact = tmp_path / "kernel.o"
    command = [*find_linker(), "-O1", "-fPIC", "-c", str(source), "-o", str(artifact)]
    subprocess.run(command, check=True)
    launch = Launch((Extent(1, ("s0",)),), ONE, 100)
    kernel = Kernel(form.signature.key, "c", Target(), artifact, "copy", launch, 0.0)
    cases = list(cases_of(copy, form.types, form.is_present))
    outcomes = call_guarded(form, kernel, cases)
    if not problem:
        assert len(outcomes) == len(cases)
        assert not any(one.problem for one in outcomes)
        for case, outcome in zip(cases, outcomes, strict=True):
            np.testing.assert_array_equal(outcome.outputs[0], case.inputs[0])
        return
    problems = [item.problem for item in outcomes if item.problem]
    assert any(word in one for one in problems for word in problem.split("|")), problems


def test_faults_of_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    op = declared()
    before = op_check.call_guarded

    def broken(*arguments: object) -> list[object]:
        outcomes = before(*arguments)
        return [replace(outcomes[0], problem="it reads or writes out of bounds"), *outcomes[1:]]

    monkeypatch.setattr(op_check, "call_guarded", broken)
    (fault,) = check(op).faults
    assert (fault.what, fault.problem) == ("kernel", "it reads or writes out of bounds")


def test_attributes_are_of_float32_as_nodes_have_them() -> None:
    """In float64, 0.1 of the reference and of the node were two numbers."""

    @ortkit.custom_op("tests.check::Plus")
    def plus(x: ortkit.Float64["n"], *, alpha: float = 0.1) -> ortkit.Float64["n"]:
        return x + alpha

    nodes = "a = Constant <value_float: float = @alpha> () b = CastLike(a, x) y = Add(x, b)"
    plus.body(f"{OPSET} f <alpha: float = 0.1> (x) => (y) {{ {nodes} }}")
    found = check_op(plus)
    assert [str(fault) for fault in found.faults] == []
    assert found.bodies == found.kernels == found.cases > 8
    assert plus.schema.attributes["alpha"].default == float(np.float32(0.1))
    assert plus(np.zeros(1))[0] == plus(np.zeros(1), alpha=0.1)[0] == float(np.float32(0.1))


def test_a_body_with_a_loop_runs_and_has_no_kernel() -> None:
    @ortkit.custom_op("tests.check::Largest")
    def largest(x: ortkit.Float["t n"]) -> ortkit.Float["t n"]:
        return np.maximum.accumulate(x, axis=0)

    largest.body(
        f"{OPSET} f (x) => (y) {{ zero = Constant <value_ints = [0]> () "
        "first = ReduceMin <keepdims = 0> (x, zero) "
        "last, y = Scan <num_scan_inputs = 1, body = g (float[n] before, float[n] row) "
        "=> (float[n] after, float[n] all) { after = Max(before, row) all = Identity(after) }> "
        "(first, x) }"
    )
    found = check(largest)
    assert found.faults == () and found.bodies > 8 and found.kernels == 0
    reason = "no kernel for float32: its body has a Scan, which no kernel can be made of"
    assert reason in found.notes


def test_a_reference_that_ends_the_process_is_a_fault() -> None:
    @ortkit.custom_op("tests.check::Ends")
    def ends(x: ortkit.Float["n"]) -> ortkit.Float["n"]:
        raise SystemExit(3)

    assert "SystemExit(3)" in check(ends).faults[0].problem


def test_outputs_are_not_called_as_inputs_are() -> None:
    @ortkit.custom_op("tests.check::Sum")
    def add(x: ortkit.Float["n"], y: ortkit.Float["n"]) -> ortkit.Float["n"]:
        return x + y

    assert list(add.schema.outputs) == ["out"]
    with pytest.raises(UserError, match="y is an output and an input or attribute"):
        ortkit.custom_op("tests.check::Sum", outputs=("y",))(add.reference)
