"""An op's reference, body and kernels against each other, on generated inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper

from ortkit.errors import OrtkitError
from ortkit.extend.bodies import opset_of
from ortkit.extend.custom_ops import CustomOp
from ortkit.extend.guarded import call_guarded
from ortkit.extend.native import Form, forms_of
from ortkit.extend.op_cases import Array, Case, cases_of, numpy_dtype
from ortkit.extend.op_schema import Types
from ortkit.kernels.backend import Kernel, Refused, Target
from ortkit.kernels.build import build_kernels, missing_toolchain
from ortkit.runtime.options import message
from ortkit.runtime.ort import import_onnxruntime
from ortkit.verify.compare import compare_outputs

#: Faults of one form beyond these are counted only.
_MOST_FAULTS = 3
#: IR 10 has every element type that ops may have.
_IR_VERSION = 10


@dataclass(frozen=True)
class Fault:
    """Something that is wrong with an op."""

    op: str
    what: str
    """"reference", "body" or "kernel"."""
    case: str
    problem: str

    def __str__(self) -> str:
        return f"{self.op}: {self.what}: {self.problem} ({self.case})"


@dataclass(frozen=True)
class OpCheck:
    """What was tried of one op, and what is wrong."""

    op: str
    cases: int
    """Calls of the reference."""
    bodies: int
    """Calls of a body that were compared with it."""
    kernels: int
    """Calls of a kernel that were compared with it."""
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]
    """What was not checked, and why."""


def check_op(
    op: CustomOp,
    *,
    dtypes: Sequence[str] | None = None,
    seed: int = 0,
    target: Target | None = None,
) -> OpCheck:
    """Run an op's reference, body and kernels on awkward inputs, and compare them.

    The reference is compared with its declaration, the others with the reference, within the
    tolerances of `ortkit.verify.tolerances`: as it is, or computed in float64 if it can be.
    Kernels are called with guarded memory.

    Args:
        op: The op.
        dtypes: Where a word such as Float stands for several element types, those to try.
        seed: Of the values.
        target: The processor that kernels are made for; None for this one.
    """
    check = _Check(op, seed)
    for types in op.schema.choices(dtypes):
        for there in op.schema.presences():
            check.reference_and_body(types, there)
    if op.bodies:
        check.kernels(dtypes, target or Target())
    else:
        check.notes.append("no body, so no kernel")
    return OpCheck(
        op.id, check.counts["reference"], check.counts["body"], check.counts["kernel"],
        tuple(check.faults), tuple(dict.fromkeys(check.notes)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Expected:
    """What the reference gives."""

    plain: tuple[Array, ...]
    exact: tuple[Array, ...] | None
    """On the same values in float64, which rounds less; None if it does not take it."""


class _Check:
    """One call of `check_op`."""

    def __init__(self, op: CustomOp, seed: int) -> None:
        self.op, self.seed = op, seed
        self.faults: list[Fault] = []
        self.notes: list[str] = []
        self.counts = dict.fromkeys(("reference", "body", "kernel"), 0)
        self._found: dict[tuple[str, str], int] = {}

    def reference_and_body(self, types: Types, there: Sequence[bool]) -> None:
        cases = list(cases_of(self.op, types, there, self.seed))
        expected = [self.expected(case) for case in cases]
        body = self._body(there)
        if body is None:
            return
        run = self._session(body, types, there)
        if run is None:
            return
        for case, want in zip(cases, expected, strict=True):
            if want is None:
                continue
            try:
                got = run(case)
            except Exception as error:  # noqa: BLE001  ONNX Runtime's own classes
                self.fault("body", case, message(error))
                continue
            self.compare("body", case, want, got)

    def kernels(self, dtypes: Sequence[str] | None, target: Target) -> None:
        if (missing := missing_toolchain()) is not None:
            self.notes.append(f"no kernels: {missing}")
            return
        found = list(forms_of(self.op, dtypes))
        forms = [one for one in found if isinstance(one, Form)]
        self.notes += [
            f"no kernel for {one[0]}: {one[1]}" for one in found if isinstance(one, tuple)
        ]
        with build_kernels([form.signature for form in forms], target) as build:
            for form, kernel in zip(forms, build.found, strict=True):
                if isinstance(kernel, Kernel):
                    self._kernel(form, kernel)
                elif isinstance(kernel, Refused):
                    self.notes.append(f"no kernel for {form.text}: {kernel.reason}")

    def _kernel(self, form: Form, kernel: Kernel) -> None:
        cases = list(cases_of(self.op, form.types, form.is_there, self.seed))
        for case, outcome in zip(cases, call_guarded(form, kernel, cases), strict=True):
            want = self.expected(case, quiet=True)
            if outcome.problem:
                self.fault("kernel", case, outcome.problem)
            elif want is not None:
                self.compare("kernel", case, want, outcome.outputs)

    def expected(self, case: Case, *, quiet: bool = False) -> _Expected | None:
        """Return what the reference gives; None where it fails."""
        with np.errstate(all="ignore"):
            try:
                plain = self.op.compute(case.inputs, case.attributes)
            except Exception as error:  # noqa: BLE001  the user's code
                if not quiet:
                    text = error.problem if isinstance(error, OrtkitError) else repr(error)
                    self.fault("reference", case, text)
                return None
            self.counts["reference"] += not quiet
            return _Expected(plain, self._in_float64(case))

    def _in_float64(self, case: Case) -> tuple[Array, ...] | None:
        """Return the reference on the same values in float64, None if it cannot."""
        narrow = {kind for kind, dtype in case.types.items() if dtype in _NARROW}
        if not narrow or any("float64" not in self.op.schema.kinds[kind] for kind in narrow):
            return None
        inputs = [
            one.astype(np.float64) if one is not None and one.dtype.name in _NARROW else one
            for one in case.inputs
        ]
        try:
            return self.op.compute(inputs, case.attributes)
        except Exception:  # noqa: BLE001  it is then judged as it is
            return None

    def compare(self, what: str, case: Case, want: _Expected, got: Sequence[Array]) -> None:
        """Compare with the reference, as it is or in float64, whichever is closer."""
        self.counts[what] += 1
        for index, (name, actual) in enumerate(zip(self.op.schema.outputs, got, strict=True)):
            found = compare_outputs(name, want.plain[index], actual)
            if not found.equal and want.exact is not None:
                rounded = want.exact[index].astype(want.plain[index].dtype)
                if compare_outputs(name, rounded, actual).equal:
                    continue
            if not found.equal:
                self.fault(what, case, f"{name}: {found.reason}")
                return

    def fault(self, what: str, case: Case, problem: str) -> None:
        if what == "body" and any(one is not None and not one.size for one in case.inputs):
            # Some kernels of ONNX Runtime refuse empty tensors, or leave garbage (MatMulInteger
            # of 1.31.1 where nothing is summed): no fault of the body's, which others show.
            text = _reason(problem)
            self.notes.append(f"body on empty tensors in ONNX Runtime: {text} ({case.text})")
            return
        key = what, case.text.split(" ")[0]
        self._found[key] = self._found.get(key, 0) + 1
        if self._found[key] <= _MOST_FAULTS:
            self.faults.append(Fault(self.op.id, what, case.text, " ".join(problem.split())))

    def _body(self, there: Sequence[bool]) -> onnx.FunctionProto | None:
        absent = [
            one.name for one, flag in zip(self.op.schema.inputs, there, strict=True) if not flag
        ]
        if not self.op.bodies:
            return None
        body = self.op.bodies.get(frozenset(absent))
        if body is None:
            self.notes.append(f"no body without {', '.join(absent)}")
        return body

    def _session(
        self, body: onnx.FunctionProto, types: Types, there: Sequence[bool]
    ) -> Callable[[Case], tuple[Array, ...]] | None:
        """Return what runs the body, None where ONNX Runtime has no kernels for these types."""
        ort = import_onnxruntime()
        schema = self.op.schema
        inputs = [one for one, flag in zip(schema.inputs, there, strict=True) if flag]
        named = [(one.name, types[one.type.kind]) for one in inputs]
        model = _model(self.op, body, named, types)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(model.SerializeToString(), options)
        except Exception as error:  # noqa: BLE001  ONNX Runtime's own classes
            text = message(error)
            if "NOT_IMPLEMENTED" in str(error) or "Could not find an implementation" in text:
                words = " ".join(dict.fromkeys(types.values()))
                self.notes.append(f"body not run in {words}: {text}")
            else:
                case = next(iter(cases_of(self.op, types, there, self.seed)))
                self.fault("body", case, text)
            return None

        def run(case: Case) -> tuple[Array, ...]:
            arrays = [one for one in case.inputs if one is not None]
            values = [
                ort.OrtValue.ortvalue_from_numpy(one)
                if one.dtype.name != "bfloat16"
                else ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                    one.view(np.uint16), onnx.TensorProto.BFLOAT16
                )
                for one in (each.copy(order="C") for each in arrays)
            ]
            feeds = {one.name: value for one, value in zip(inputs, values, strict=True)}
            found = session.run_with_ort_values(None, feeds)
            return tuple(np.asarray(one.numpy()) for one in found)

        return run


def _reason(text: str) -> str:
    """Return what ONNX Runtime says of a node, without which node it is."""
    return text.partition("Status Message: ")[2] or text


_NARROW = ("float16", "bfloat16", "float32")


def _model(
    op: CustomOp,
    body: onnx.FunctionProto,
    inputs: Sequence[tuple[str, str]],
    types: Types,
) -> onnx.ModelProto:
    """Return a model of one node of the op, with the body as its function."""

    def info(name: str, dtype: str) -> onnx.ValueInfoProto:
        code = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype))
        return onnx.helper.make_tensor_value_info(name, code, None)

    node = onnx.helper.make_node(
        op.name, [one[0] for one in inputs], [f"out_{name}" for name in op.schema.outputs],
        domain=op.domain,
    )  # fmt: skip
    node.attribute.extend(
        onnx.helper.make_attribute(
            name, int(one.default) if isinstance(one.default, bool) else one.default
        )
        for name, one in op.schema.attributes.items()
        if one.default is not None and one.default != ()
    )
    graph = onnx.helper.make_graph(
        [node], "g", [info(name, dtype) for name, dtype in inputs],
        [info(f"out_{name}", types[kind.kind]) for name, kind in op.schema.outputs.items()],
    )  # fmt: skip
    opsets = [
        onnx.helper.make_opsetid("", opset_of(body)),
        onnx.helper.make_opsetid(op.domain, op.version),
        *(one for one in body.opset_import if one.domain not in ("", "ai.onnx")),
    ]
    return onnx.helper.make_model(
        graph, opset_imports=opsets, functions=[body], ir_version=_IR_VERSION
    )
