"""Optimize a case at several levels and say what is wrong with the results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from ortkit import OptimizeOptions, OrtkitError, optimize
from ortkit.graph.check.model import check_model
from ortkit.rewrite.log import Hit
from ortkit.verify.compare import compare_outputs
from tests.e2e.suites import Case, Value, run, same, with_subgraphs

#: Before this IR version initializers had to be listed as inputs.
OVERRIDABLE_SINCE_IR = 4


#: Rewrites that write a node in parts, which is faster, and how many more that makes at most.
_PARTS = {"split-group-norm": 7, "split-skip-norm": 4, "fuse-activation:mish": 6}


@dataclass
class Tally:
    """What became of the cases judged so far."""

    folder: Path
    """For the files of the case at hand."""
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """`cases`; `run`: those that ONNX Runtime runs; `referenced`: of the others, those that
    onnx's own evaluator runs; `rewrites`: all that were applied; `exact`
    and `close`: results equal to the last bit, and others within the tolerances."""

    def judge(self, case: Case, levels: Sequence[int] = (1, 2, 3)) -> None:
        """Optimize one case at these levels and note what is wrong."""
        self.counts["cases"] += 1
        expected = _expected(case)
        self.counts["run"] += expected is not None and expected.runner is run
        self.counts["referenced"] += expected is not None and expected.runner is _reference
        is_checked = _is_accepted(case.model)
        seen: set[bytes] = set()
        for level in levels:
            options = OptimizeOptions(
                level=level, verify=False, check_load=False, kernels="off"
            )  # each case is run below
            try:
                result = optimize(case.model, options)
                check_model(result.model)
            except OrtkitError as error:
                self.faults.append(f"{case.name} at level {level}: {error}")
                return
            data = ir.to_proto(result.model).SerializeToString(deterministic=True)
            if data in seen:
                continue
            seen.add(data)
            path = self.folder / "after.onnx"
            result.save(path)
            after = onnx.load(path)
            self.counts["rewrites"] += len(result.report.hits)
            parts = sum(_parts_of(hit) for hit in result.report.hits)
            found = list(_faults(case.model, after, parts, is_checked=is_checked))
            if not result.report.settled:
                found.append("does not settle")
            if expected is not None:
                found.extend(self._compared(after, case, expected))
            self.faults.extend(f"{case.name} at level {level}: {fault}" for fault in found)

    def _compared(self, after: onnx.ModelProto, case: Case, expected: _Expected) -> Iterator[str]:
        want = expected.values
        try:
            got = expected.runner(after, case.feeds())
        except Exception as error:  # noqa: BLE001  ONNX Runtime's own have no other base
            yield f"the runtime takes the original but not the result: {error}"
            return
        if len(want) == len(got) and all(map(same, want, got)):
            self.counts["exact"] += 1
            return
        self.counts["close"] += 1
        for output, first, second in zip(case.model.graph.output, want, got, strict=True):
            judged = compare_outputs(output.name, first, second)
            if not judged.equal:
                yield f"output {output.name!r}: {judged.reason}"


Runner = Callable[[onnx.ModelProto, Mapping[str, Value]], list[Value]]


@dataclass(frozen=True)
class _Expected:
    """What a runtime makes of the original."""

    runner: Runner
    values: list[Value]


def _reference(model: onnx.ModelProto, feeds: Mapping[str, Value]) -> list[Value]:
    """Run a model in onnx's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model, new_ops=_contrib_ops()).run(None, dict(feeds)))


@cache
def _contrib_ops() -> list[type]:
    """Return what the evaluator lacks of the ops that a result may hold."""
    from onnx.reference.op_run import OpRun

    class QuickGelu(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x: np.ndarray, alpha: float = 1.702) -> tuple[np.ndarray]:
            wide = x.astype(np.float64)
            return ((wide / (1 + np.exp(-alpha * wide))).astype(x.dtype),)

    return [QuickGelu]


def _expected(case: Case) -> _Expected | None:
    """Run the original in ONNX Runtime, or where that does not, in onnx's evaluator.

    None if neither runs it, or if the results vary.
    """
    for runner in (run, _reference):
        try:
            first, second = (runner(case.model, case.feeds()) for _ in range(2))
        except Exception:  # noqa: BLE001  ONNX Runtime's own have no other base
            continue
        return _Expected(runner, first) if all(map(same, first, second)) else None
    return None


def _parts_of(hit: Hit) -> int:
    return _PARTS.get(hit.pass_name, _PARTS.get(f"{hit.pass_name}:{hit.rule}", 0))


def _faults(
    before: onnx.ModelProto, after: onnx.ModelProto, parts: int, *, is_checked: bool
) -> Iterator[str]:
    if interface(before) != interface(after):
        yield "inputs or outputs changed"
    if count_nodes(after) > count_nodes(before) + parts:
        yield f"{count_nodes(before)} nodes became {count_nodes(after)}"
    if is_checked and not _is_accepted(after):
        yield "onnx.checker took the original but not the result"


def interface(model: onnx.ModelProto) -> list[bytes]:
    """Return the inputs that a caller gives, and the outputs."""
    held: set[str] = set()
    if model.ir_version < OVERRIDABLE_SINCE_IR:
        held = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in held]
    values = [*inputs, *model.graph.output]
    return [value.SerializeToString(deterministic=True) for value in values]


def count_nodes(model: onnx.ModelProto) -> int:
    """Return how many nodes there are but for Constants, bodies included."""
    functions = [node for function in model.functions for node in function.node]
    nodes = with_subgraphs([*model.graph.node, *functions])
    return sum(node.op_type != "Constant" for node in nodes)


def _is_accepted(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError:
        return False
    return True
