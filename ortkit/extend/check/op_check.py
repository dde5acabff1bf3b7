"""An op's reference, body and kernels against each other, on generated inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import onnx

from ortkit.errors import MissingDependencyError, OrtkitError, UserError
from ortkit.extend.body.body_session import NoSession, body_session
from ortkit.extend.build.library import built_forms
from ortkit.extend.check.guarded import Outcome, call_guarded
from ortkit.extend.check.interpreted import call_interpreted, is_small
from ortkit.extend.check.op_cases import Array, Case, cases_of
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import Types
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.triton.source import is_gluon
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.library import missing_toolchain
from ortkit.refusal import Refused
from ortkit.runtime.options import message
from ortkit.targets.catalog import traits_of
from ortkit.targets.target import Target
from ortkit.verify.compare import OutputComparison, compare_outputs

#: Faults of one form beyond these are counted only.
_MOST_FAULTS = 3
#: Of a variadic input this many in addition to the first are tried.
_MORE_VARIADIC = 2


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
    op: DeclaredOp,
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
            check.reference_and_body(types, _variadic(op, there))
    if op.bodies or any(kernel.is_on_host for kernel in op.kernels):
        check.kernels(dtypes, target or Target())
    if any(kernel.backend == "triton" for kernel in op.kernels):
        check.interpreted(dtypes)
    if not op.bodies and not op.kernels:
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

    def __init__(self, op: DeclaredOp, seed: int) -> None:
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
        """Compare the kernels for CPUs."""
        if (missing := missing_toolchain()) is not None:
            self.notes.append(f"no kernels: {missing}")
            return
        forms = self._forms(dtypes, "cpu")
        try:
            with built_forms([(form, target) for form in forms]) as (found, _):
                for form, kernel in zip(forms, found, strict=True):
                    if isinstance(kernel, Kernel):
                        self._kernel(
                            form, partial(call_guarded, form, kernel), more=_tuned(form, target)
                        )
                    elif isinstance(kernel, Refused):
                        self._refused(form, kernel.reason)
        except MissingDependencyError as error:
            self.notes.append(f"no kernels: {error}")
        except UserError as error:
            self.fault_of_kernel(f"{error.problem}: {error.fix}" if error.fix else error.problem)

    def interpreted(self, dtypes: Sequence[str] | None) -> None:
        """Compare the kernels that were written in Triton, in its interpreter."""
        if find_spec("triton") is None:
            self.notes.append("triton is not installed, so its kernels are not tried")
            return
        for form in self._forms(dtypes, "cuda"):
            if form.declared is None:
                continue
            try:
                if is_gluon(form.declared.function):
                    self.notes.append(f"not tried: {form.text}: Gluon has no interpreter")
                    continue
                self._kernel(form, partial(call_interpreted, form), partial(is_small, form))
            except UserError as error:
                self.fault_of_kernel(
                    f"{error.problem}: {error.fix}" if error.fix else error.problem
                )

    def _forms(self, dtypes: Sequence[str] | None, target: str) -> list[Form]:
        found = list(forms_of(self.op, dtypes, target))
        traits = traits_of(target)
        where = "" if traits.is_host else f" on {traits.title}"
        self.notes += [
            f"no kernel for {item[0]}{where}: {item[1]}"
            for item in found
            if isinstance(item, tuple)
        ]
        return [form for form in found if isinstance(form, Form)]

    def _refused(self, form: Form, reason: str) -> None:
        if form.declared is None:
            self.notes.append(f"no kernel for {form.text}: {reason}")
        else:
            self.fault_of_kernel(f"{form.text}: {reason}")

    def fault_of_kernel(self, problem: str) -> None:
        self.faults.append(Fault(self.op.id, "kernel", "no case", " ".join(problem.split())))

    def _kernel(
        self,
        form: Form,
        call: Callable[[Sequence[Case]], list[Outcome]],
        is_tried: Callable[[Case], bool] = lambda _: True,
        more: Sequence[Mapping[str, int]] = (),
    ) -> None:
        all_cases = cases_of(self.op, form.types, form.is_present, self.seed, form.rules, more)
        cases = [case for case in all_cases if is_tried(case)]
        if not cases:
            self.notes.append(f"no case has the sizes that {form.text} is for")
        for case, outcome in zip(cases, call(cases), strict=False):
            want = self.expected(case, quiet=True)
            if outcome.problem:
                self.fault("kernel", case, outcome.problem, form)
            elif want is not None:
                self.compare("kernel", case, want, outcome.outputs, form)

    def expected(self, case: Case, *, quiet: bool = False) -> _Expected | None:
        """Return what the reference gives; None where it fails."""
        with np.errstate(all="ignore"):
            try:
                plain = self.op.compute(case.inputs, case.attributes)
            except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code
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
            array.astype(np.float64)
            if array is not None and array.dtype.name in _NARROW
            else array
            for array in case.inputs
        ]
        try:
            return self.op.compute(inputs, case.attributes)
        except Exception:  # noqa: BLE001  it is then judged as it is
            return None

    def compare(
        self,
        what: str,
        case: Case,
        want: _Expected,
        got: Sequence[Array],
        form: Form | None = None,
    ) -> None:
        """Compare with the reference, as it is or in float64, whichever is closer."""
        self.counts[what] += 1
        for index, (name, actual) in enumerate(zip(self.op.schema.outputs, got, strict=True)):
            found = _compared(name, want.plain[index], actual)
            if not found.equal and want.exact is not None:
                rounded = want.exact[index].astype(want.plain[index].dtype)
                if _compared(name, rounded, actual).equal:
                    continue
            if not found.equal:
                self.fault(what, case, f"{name}: {found.reason}", form)
                return

    def fault(self, what: str, case: Case, problem: str, form: Form | None = None) -> None:
        """Note a fault; `form` is the kernel's, if it was written and not generated."""
        if form is not None and form.declared is not None:
            problem = f"{form.declared.name}: {problem}"
        if what == "body" and any(array is not None and not array.size for array in case.inputs):
            # Some kernels of ONNX Runtime refuse empty tensors, or leave garbage (MatMulInteger
            # of 1.31.1 where nothing is summed): no fault of the body's, which others show.
            text = _reason(problem)
            self.notes.append(f"body on empty tensors in ONNX Runtime: {text} ({case.text})")
            return
        key = f"{what} {form.text if form else ''}", case.text.split(" ")[0]
        self._found[key] = self._found.get(key, 0) + 1
        if self._found[key] <= _MOST_FAULTS:
            self.faults.append(Fault(self.op.id, what, case.text, " ".join(problem.split())))

    def _body(self, there: Sequence[bool]) -> onnx.FunctionProto | None:
        if not self.op.bodies:
            return None
        absent = [
            op_input.name
            for op_input, flag in zip(self.op.schema.inputs, there, strict=True)
            if not flag
        ]
        body = self.op.bodies.get(frozenset(absent))
        if body is None:
            self.notes.append(f"no body without {', '.join(absent)}")
        return body

    def _session(
        self, body: onnx.FunctionProto, types: Types, there: Sequence[bool]
    ) -> Callable[[Case], tuple[Array, ...]] | None:
        """Return what runs the body, None where ONNX Runtime has no kernels for these types."""
        run = body_session(self.op, body, types, there)
        if isinstance(run, NoSession):
            if run.is_missing_kernel:
                words = " ".join(dict.fromkeys(types.values()))
                self.notes.append(f"body not run in {words}: {run.reason}")
            else:
                case = next(iter(cases_of(self.op, types, there, self.seed)))
                self.fault("body", case, run.reason)
            return None
        return run


def _tuned(form: Form, target: Target) -> list[dict[str, int]]:
    """Return the sizes that a kernel has a schedule of its own for, and some rows beyond."""
    if form.declared is None:
        return []
    from ortkit.extend.tvm.searched import traced_for

    split = form.declared.options.split
    return [
        {
            name: 2 * size + 3 if name == split else size
            for name, size in traced_schedule.sizes.items()
        }
        for traced_schedule in traced_for(form, target.resolved(), [])
    ]


def _compared(name: str, want: Array, actual: Array) -> OutputComparison:
    with np.errstate(all="ignore"):  # NaN among them is no news
        return compare_outputs(name, want, actual)


def _variadic(op: DeclaredOp, there: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return which inputs there are, of a variadic one several."""
    return (*there, *(True,) * _MORE_VARIADIC) if op.schema.inputs[-1].is_variadic else there


def _reason(text: str) -> str:
    """Return what ONNX Runtime says of a node, without which node it is."""
    return text.partition("Status Message: ")[2] or text


_NARROW = ("float16", "bfloat16", "float32")
