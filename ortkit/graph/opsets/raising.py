"""Let a model import a newer version of the default domain, nodes converted in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ortkit.graph.check.schemas import RUNTIME_OWN
from ortkit.graph.opsets.adapters import ADAPTERS
from ortkit.graph.opsets.apply import Writer
from ortkit.graph.opsets.form import Form, Known
from ortkit.graph.opsets.kernels import CPU_WITHOUT_KERNEL, LAST_INLINED, Key
from ortkit.graph.opsets.schema_steps import history, only_widens, refusal
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import nodes_below, roots

#: The versions that are converted from and to.
OLDEST, NEWEST = 7, 25


@dataclass(frozen=True, eq=False)
class Plan:
    """A conversion that can be carried out: nothing in it is doubtful."""

    model: ir.Model
    version: int
    forms: tuple[tuple[ir.Graph | ir.Function, tuple[Form, ...]], ...]
    """How the nodes that change are written, for each graph that is to be raised."""


def raise_opset(model: ir.Model, version: int) -> str | None:
    """Let every graph and function of `model` import this version of the default domain at least.

    Everything is looked at first: where one node cannot be written in the new version, nothing
    is changed. Nodes keep being the same objects with the same outputs. Weights are not read,
    but for bounds and scales of a few numbers. The IR version stays: none is too old for an opset.

    Returns:
        None, or why nothing was changed.
    """
    plan = plan_raise(model, version)
    if isinstance(plan, str):
        return plan
    carry_out(plan)
    return None


def plan_raise(
    model: ir.Model,
    version: int,
    shapes: Shapes | None = None,
    without_kernel: frozenset[Key] = CPU_WITHOUT_KERNEL,
) -> Plan | str:
    """Return how `model` is written in `version`, or why it cannot be; changes nothing.

    Args:
        model: Any model.
        version: Up to `NEWEST`.
        shapes: What is known of its values; inferred if need be.
        without_kernel: Where a node may not go, since it would lose its kernel.
    """
    if version > NEWEST:
        return f"opset {version} is newer than {NEWEST}, the newest that models are converted to"
    known = Known(model, version, shapes)
    local = {
        (function.domain, function.name, function.overload)
        for function in model.functions.values()
    }
    planned = []
    for root in roots(model):
        start = root.opset_imports.get("") or model.opset_imports.get("", 0)
        forms: list[Form] = []
        for node in _of_default_domain(root, local) if start < version else ():
            made = _converted(node, start, version, known, without_kernel)
            if isinstance(made, str):
                return f"{made} ({node.op_type} {node.name or _output(node)!r})"
            if made is not None:
                forms.append(made)
        planned.append((root, tuple(forms)))
    return Plan(model, version, tuple(planned))


def carry_out(
    plan: Plan, shapes: Shapes | None = None, names: set[str] | None = None
) -> dict[int, list[ir.Node]]:
    """Write the model as planned.

    Args:
        plan: A plan for the model as it is.
        shapes: Kept true.
        names: All names that the model uses; new ones are added. Found if need be.

    Returns:
        For the id of each graph and function the nodes that were rewritten or added.
    """
    writer = Writer(plan.model, shapes, names)
    written: dict[int, list[ir.Node]] = {}
    for root, forms in plan.forms:
        for node in nodes_below(root):
            if node.domain == "" and node.version is not None:
                node.version = max(plan.version, node.version)
        if "" in root.opset_imports or root is plan.model.graph:
            root.opset_imports[""] = max(plan.version, root.opset_imports.get("", 0))
        written[id(root)] = [node for form in forms for node in writer.write(root, form)]
    return written


def _of_default_domain(
    root: ir.Graph | ir.Function, local: set[tuple[str, str, str]]
) -> Iterator[ir.Node]:
    for node in nodes_below(root):
        if node.domain == "" and (node.domain, node.op_type, node.overload) not in local:
            yield node


def _converted(
    node: ir.Node, start: int, version: int, known: Known, lost: frozenset[Key]
) -> Form | str | None:
    """Return how `node` is written in `version`, None if as it is now, else the reason."""
    if start < OLDEST:
        return f"opset {start} is older than {OLDEST}, the oldest that is converted"
    versions = history(node.op_type)
    if not versions or versions[0] > start:
        return _unknown(node, start, version)
    if start <= LAST_INLINED.get(node.op_type, 0) < version:
        return f"ONNX Runtime does not run {node.op_type} in opset {version}"
    if _stays(node.op_type, start, version, lost):
        return None
    form = written = Form.of(node)
    since = start
    while (then := _next(form.op_type, since)) is not None and then <= version:
        if (form.op_type, then) in lost:
            return f"{form.op_type} of opset {then}: ONNX Runtime has no kernel for it"
        adapter = ADAPTERS.get((form.op_type, then))
        if adapter is None:
            old = max(item for item in history(form.op_type) if item <= since)
            if (reason := refusal(form, old, then, known)) is not None:
                return reason
        elif any(attribute.is_ref() for attribute in node.attributes.values()):
            return "an attribute is a parameter of the function"
        else:
            adapted = adapter(form, known)
            if isinstance(adapted, str):
                return f"{form.op_type} of opset {then}: {adapted}"
            form = adapted
        since = then
    return None if form is written else form


def _stays(op_type: str, start: int, version: int, lost: frozenset[Key]) -> bool:
    """Say whether any node with this op is the same in both versions, and runs in both."""
    since = start
    while (then := _next(op_type, since)) is not None and then <= version:
        old = max(item for item in history(op_type) if item <= since)
        key = (op_type, then)
        if key in ADAPTERS or key in lost or not only_widens(op_type, old, then):
            return False
        since = then
    return True


def _next(op_type: str, since: int) -> int | None:
    return next((item for item in history(op_type) if item > since), None)


def _unknown(node: ir.Node, start: int, version: int) -> str | None:
    """Return why an operator that ONNX does not have at `start` cannot stay, None if it can."""
    if node.op_type not in RUNTIME_OWN:
        return f"ONNX has no {node.op_type} in opset {start}"
    versions = history(node.op_type)
    if versions and versions[0] <= version and node.op_type not in _ADOPTED:
        return f"{node.op_type} of ONNX Runtime is not the one of opset {versions[0]}"
    return None


#: Operators of ONNX Runtime's own that ONNX took over as they were.
_ADOPTED = frozenset({"LayerNormalization", "ThresholdedRelu"})


def _output(node: ir.Node) -> str:
    return (node.outputs[0].name if node.outputs else "") or ""
