"""Ops that are defined in Python, in a session: through onnxruntime-extensions' Python ops.

These take neither absent inputs nor absent attributes, and a Python exception in one ends the
process. So each node gets an op of its own, with its attributes inside, and what goes wrong is
kept for the session to raise after the run.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.errors import OrtkitError, RunError, UserError
from ortkit.graph.io.header import Header
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.runtime.python_slots import DOMAIN, SLOTS, op_type, passes


class PythonOp(Protocol):
    """What a session needs of an op that is defined in Python."""

    domain: str
    name: str
    version: int

    def compute(
        self, inputs: Sequence[Any], attributes: Mapping[str, object]
    ) -> tuple[np.ndarray, ...]: ...
    def result_dtypes(
        self, dtypes: Sequence[str | None], attributes: Mapping[str, object]
    ) -> tuple[str, ...]: ...
    def function(self, opset: int, there: Sequence[bool]) -> onnx.FunctionProto | None: ...


#: By domain, name and version: `ortkit.custom_op` puts them here.
OPS: dict[tuple[str, str, int], PythonOp] = {}


def op_for(domain: str, name: str, version: int) -> PythonOp | None:
    """Return the op that a model with this version of the domain means."""
    found = [key for key in OPS if key[:2] == (domain, name) and key[2] <= version]
    return OPS[max(found)] if found else None


class Failures:
    """What was raised inside of a session's Python ops, by the thread that ran them."""

    def __init__(self) -> None:
        """Begin without."""
        self.slots: list[int] = []
        self._lock = threading.Lock()
        self._found: list[tuple[int, Exception, str]] = []

    def put(self, error: Exception, op: str) -> None:
        """Keep what an op raised."""
        with self._lock:
            self._found.append((threading.get_ident(), error, op))

    def belong_to(self, session: object) -> None:
        """Keep the slots for as long as `session` lives."""
        weakref.finalize(session, SLOTS.release, self.slots)

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return `run` so that what Python ops raise in it is raised by it."""

        def checked(*arguments: Any) -> Any:
            self._take()
            try:
                result = run(*arguments)
            except Exception:
                self._raise()
                raise
            self._raise()
            return result

        return checked

    def _raise(self) -> None:
        if (found := self._take()) is None:
            return
        error, op = found
        if isinstance(error, OrtkitError):
            raise error
        problem = f"its reference raised {type(error).__name__}: {error}"
        raise RunError(problem, where=op) from error

    def _take(self) -> tuple[Exception, str] | None:
        """Return and forget what this thread found, or else any: nodes may run in others."""
        if not self._found:
            return None
        with self._lock:
            own = [item for item in self._found if item[0] == threading.get_ident()]
            schema = (own or self._found)[0]
            self._found = [one for one in self._found if own and one not in own]
            return schema[1], schema[2]


def with_python_ops(
    content: Path | bytes,
    header: Header,
    registered: Callable[[str], bool],
    folder: Callable[[], Path],
) -> tuple[Path, Failures] | None:
    """Return a model in which nodes of ops that are defined in Python can run.

    Nodes for which the model has a function, or a library that is registered a kernel, stay. An
    op with a body gets its function, any other one becomes a Python op of onnxruntime-extensions.

    Args:
        content: The model.
        header: The model's.
        registered: Whether `domain::Name` is the op of a library.
        folder: Gives one for the changed model.

    Returns:
        None if there is nothing to change.

    Raises:
        MissingDependencyError: onnxruntime-extensions is needed and not installed.
        UserError: A node does not fit its op.
    """
    domains = {domain for domain, _, _ in OPS} & set(header.opsets)
    if not domains:
        return None
    model, failures = open_model(content), Failures()
    shapes, changed = Shapes.infer(model), _Nodes(failures)
    functions: dict[tuple[str, str], onnx.FunctionProto] = {}
    opset = model.opset_imports.get("", 1)
    for node in _nodes(model):
        if node.domain not in domains or (node.domain, node.op_type) in header.functions:
            if changed.slots and any(shapes.dtype(value) is None for value in node.outputs):
                shapes.infer_node(node)  # it may follow from what a Python op gives
            continue
        op = op_for(node.domain, node.op_type, header.opsets[node.domain])
        if op is None or registered(f"{node.domain}::{node.op_type}"):
            continue
        body = op.function(opset, [value is not None for value in node.inputs])
        if body is not None:
            functions[(node.domain, node.op_type)] = body
            _tell_types(shapes, node, op)
            continue
        dtypes = [None if value is None else _dtype(shapes, value, node) for value in node.inputs]
        changed.change(node, op, dtypes)
        shapes.infer_node(node)
    if not changed.slots and not functions:
        return None
    for body in functions.values():
        _add_function(model, body)
    if changed.slots:
        model.opset_imports[DOMAIN] = 1
    path = folder() / "with_python_ops.onnx"
    save_model(model, path)
    failures.slots = changed.slots
    return path, failures


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def _add_function(model: ir.Model, body: onnx.FunctionProto) -> None:
    function = ir.serde.deserialize_function(body)
    for opset in body.opset_import:
        model.opset_imports.setdefault(opset.domain, opset.version)
    model.functions[function.identifier()] = function


class _Nodes:
    """The nodes of one model that become Python ops; those that are alike share a slot."""

    def __init__(self, failures: Failures) -> None:
        self.failures = failures
        self._taken: dict[object, int] = {}

    @property
    def slots(self) -> list[int]:
        return list(self._taken.values())

    def change(self, node: ir.Node, op: PythonOp, dtypes: Sequence[str | None]) -> None:
        """Let a node be a Python op of its own, and say what its outputs are."""
        where = f"{node.domain}::{node.op_type}"
        attributes = {name: _value(attribute) for name, attribute in node.attributes.items()}
        there = [value is not None for value in node.inputs]
        inputs = tuple(one for one, is_present in zip(dtypes, there, strict=True) if is_present)
        outputs = op.result_dtypes(dtypes, attributes)[: len(node.outputs)]
        given = [item for item in inputs if item is not None]
        if not passes((*given, *outputs)):
            found = ", ".join(output for output in (*given, *outputs) if not passes([output]))
            raise UserError(
                f"onnxruntime-extensions passes no {found} to Python", where=where,
                fix="give it a body, build a library of it, or cast to float32 around it",
            )  # fmt: skip
        key = id(op), repr(sorted(attributes.items())), tuple(dtypes), len(outputs)
        if key not in self._taken:
            runner = _Runner(op, attributes, there, outputs, self.failures)
            self._taken[key] = SLOTS.take(runner, given, outputs)
        node.domain, node.op_type = DOMAIN, op_type(self._taken[key])
        node.attributes.clear()
        for index in reversed([i for i, is_present in enumerate(there) if not is_present]):
            _drop_input(node, index)
        for value, dtype in zip(node.outputs, outputs, strict=True):
            value.dtype = ir.DataType.from_numpy(np.dtype(dtype))


def _tell_types(shapes: Shapes, node: ir.Node, op: PythonOp) -> None:
    """Say what a node gives that its function computes, for Python ops that read it."""
    known = [None if value is None else shapes.dtype(value) for value in node.inputs]
    if None in known:
        return
    attributes = {name: _value(attribute) for name, attribute in node.attributes.items()}
    dtypes = op.result_dtypes(
        [str(data_type.numpy().name) for data_type in known if data_type], attributes
    )
    for value, dtype in zip(node.outputs, dtypes, strict=False):
        value.dtype = ir.DataType.from_numpy(np.dtype(dtype))
    shapes.infer_node(node)


def _dtype(shapes: Shapes, value: ir.Value, node: ir.Node) -> str:
    dtype = shapes.dtype(value)
    if dtype is None:
        raise UserError(
            f"the element type of {value.name!r} does not follow from the model",
            where=f"{node.domain}::{node.op_type}",
            fix="declare it in the model's value_info",
        )
    return str(dtype.numpy().name)


def _drop_input(node: ir.Node, index: int) -> None:
    for after in range(index, len(node.inputs) - 1):
        node.replace_input_with(after, node.inputs[after + 1])
    node.resize_inputs(len(node.inputs) - 1)


def _value(attribute: ir.Attr) -> object:
    if attribute.is_ref():
        raise UserError(f"the attribute {attribute.name} is a function's")
    value = attribute.value
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


class _Runner:
    """What onnxruntime-extensions calls in a run; it must not raise."""

    def __init__(
        self,
        op: PythonOp,
        attributes: Mapping[str, object],
        there: Sequence[bool],
        outputs: Sequence[str],
        failures: Failures,
    ) -> None:
        self.op, self.attributes, self.there = op, attributes, there
        self.outputs, self.failures = outputs, failures

    def __call__(self, *given: np.ndarray) -> Any:
        try:
            left = iter(given)
            inputs = [next(left) if is_present else None for is_present in self.there]
            results = self.op.compute(inputs, self.attributes)[: len(self.outputs)]
        except Exception as error:  # noqa: BLE001  whatever it is, beyond here it ends the process
            self.failures.put(error, f"{self.op.domain}::{self.op.name}")
            results = tuple(np.zeros(0, dtype) for dtype in self.outputs)
        return results[0] if len(results) == 1 else results
