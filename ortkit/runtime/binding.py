"""Memory bound to a session's inputs and outputs once, for runs that copy and check nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.errors import UserError
from ortkit.runtime.bound_memory import (
    Value,
    as_ortvalue,
    as_shape,
    check_output,
    given_output,
    input_memory,
    named_sizes,
    output_memory,
    reserved_memory,
)
from ortkit.runtime.capture_gate import GATE
from ortkit.runtime.cuda_graphs import BoundGraph, CapturedRuns
from ortkit.runtime.feeds import FeedReader, Given, shape_of
from ortkit.runtime.memory_devices import GPU, HOST, SessionDevices
from ortkit.runtime.options import explained
from ortkit.runtime.packed_graphs import PackedBound, PackedRuns
from ortkit.runtime.sharing import as_array, device_of, is_on_host, wait_for_writers
from ortkit.runtime.specs import ONNX_CODES, TensorSpec

#: ONNX Runtime shows them as arrays of another type, or not at all.
_NO_ARRAYS = frozenset(f"tensor({name})" for name in ONNX_CODES)


class Binding:
    """A session with memory in place; `run` may not be called from two threads at once.

    Attributes:
        inputs: What the session reads: write into it, or use `update`.
    """

    def __init__(
        self,
        session: Any,
        io: Any,
        inputs: Mapping[str, Value],
        outputs: Mapping[str, Value],
        names: Sequence[str],
        devices: SessionDevices,
        graph: BoundGraph | PackedBound | None,
    ) -> None:
        """Take what `Session.bind` has made; outputs that are missing change with each run."""
        self.inputs = dict(inputs)
        self._session = session
        self._io = io
        self._outputs = {name: outputs.get(name) for name in names}
        self._open = [name for name in names if name not in outputs]
        self._devices = devices
        self._graph = graph
        self._is_on_device = devices.computes != HOST
        self._is_closed = False

    def run(self, options: Any = None) -> Mapping[str, Value]:
        """Run on what the inputs hold now; returns the outputs, as `outputs` does.

        Waits first for what this thread's CUDA stream still has to do, and ends when the outputs
        are written.

        Args:
            options: An `onnxruntime.RunOptions`.

        Raises:
            RunError: ONNX Runtime failed.
        """
        if self._graph is not None:
            return self._replayed(self._graph, options)
        if not self._is_on_device:
            return self._run(options)
        with GATE:
            wait_for_writers(self._devices.number)
            return self._run(options)

    def _run(self, options: Any) -> Mapping[str, Value]:
        # What ONNX Runtime reserved in the last run would be taken for the caller's memory.
        for name in self._open:
            self._io.bind_output(name, self._devices.device, self._devices.number)
        try:
            self._session.run_with_iobinding(self._io, options)
        except Exception as error:
            if self._is_closed:
                raise UserError("the binding is closed", fix="bind again") from error
            raise explained(error) from error
        return self.outputs if self._open else self._outputs

    def _replayed(self, graph: BoundGraph | PackedBound, options: Any) -> Mapping[str, Value]:
        if self._is_closed:
            raise UserError("the binding is closed", fix="bind again")
        if graph.is_stale:
            graph.release()
            for name in self._open:
                self._io.bind_output(name, self._devices.device, self._devices.number)
        with GATE:
            wait_for_writers(self._devices.number)
        graph.run(self._io, options)
        return self.outputs

    def close(self) -> None:
        """Let go of the memory, and of the CUDA graph if there is one."""
        if self._graph is not None:
            self._graph.release()
        self._io.clear_binding_inputs()
        self._io.clear_binding_outputs()
        self.inputs, self._outputs, self._open = {}, {}, []
        self._is_closed = True

    @property
    def outputs(self) -> Mapping[str, Value]:
        """What the last run wrote, by name: the same memory in each run where sizes are known."""
        if self._open:
            values = dict(zip(self._outputs, self._io.get_outputs(), strict=True))
            self._outputs.update({name: self._shown(values, name) for name in self._open})
        return self._outputs

    def _shown(self, values: Mapping[str, Any], name: str) -> Value:
        """Return numpy's view of an OrtValue on the CPU, lists for sequences, others as such."""
        value = values[name]
        if not value.is_tensor():
            index = list(values).index(name)
            return self._io.copy_outputs_to_cpu()[index]
        if not is_on_host(value) or value.data_type() in _NO_ARRAYS:
            return value
        return value.numpy()

    def update(self, **arrays: object) -> None:
        """Copy arrays into the inputs of these names.

        Raises:
            UserError: There is no such input, or the shape or type is another.
        """
        for name, given in arrays.items():
            if name not in self.inputs:
                raise UserError(
                    f"there is no input {name!r}", fix=f"the inputs are {', '.join(self.inputs)}"
                )
            target = self.inputs[name]
            array = np.asarray(given)
            if isinstance(target, np.ndarray) and array.dtype != target.dtype:
                raise UserError(
                    f"is {array.dtype.name}, bound is {target.dtype.name}", where=f"input {name!r}"
                )
            if array.shape != shape_of(target):
                raise UserError(
                    f"has shape {list(array.shape)}, bound is {list(shape_of(target) or ())}",
                    where=f"input {name!r}",
                    fix="bind again for another shape",
                )
            if isinstance(target, np.ndarray):
                target[...] = array
            else:
                with GATE:
                    target.update_inplace(np.ascontiguousarray(array))


def bind(
    ort: ModuleType,
    session: Any,
    reader: FeedReader,
    specs: Sequence[TensorSpec],
    given_inputs: Given,
    outputs: Mapping[str, object] | Sequence[str] | None,
    devices: SessionDevices,
    graphs: CapturedRuns | PackedRuns | None = None,
    share: Mapping[str, str] | None = None,
) -> Binding:
    """Make a binding; the arguments are those of `Session.bind`."""
    inputs = reader.named(given_inputs)
    by_name = {spec.name: spec for spec in (*reader.inputs, *reader.optional)}
    reserved = {
        name: reserved_memory(ort, by_name[name], shape, devices, name)
        for name, value in inputs.items()
        if name in by_name and (shape := as_shape(value)) is not None
    }
    given = reader.read({**inputs, **reserved})
    known = {spec.name: spec for spec in specs}
    for name in outputs or ():
        if name not in known:
            raise UserError(
                f"there is no output {name!r}", fix=f"the outputs are {', '.join(known)}"
            )
    bound = {name: input_memory(ort, name, value, devices) for name, value in given.items()}
    sizes = named_sizes(by_name, given)
    given_memory = dict(outputs) if isinstance(outputs, Mapping) else {}
    for name, result in (share or {}).items():
        if result in given_memory:
            raise UserError(f"output {result!r} has memory of its own", where="share")
        if name not in bound:
            raise UserError(f"input {name!r} is not given", where="share")
        given_memory[result] = bound[name]
    names = list(known if outputs is None or isinstance(outputs, Mapping) else outputs)
    fixed: dict[str, Value] = {}
    for name in names:
        if name in given_memory:
            fixed[name] = given_output(ort, known[name], given_memory[name], devices)
            check_output(known[name], fixed[name], sizes)
        elif (value := output_memory(ort, known[name], sizes, devices)) is not None:
            fixed[name] = value
    values = {name: as_ortvalue(ort, value) for name, value in bound.items()}
    graph = None
    if graphs is not None:
        _check_graph(bound, fixed, devices)
        host = {name: bound[name] for name in bound if name in devices.on_host}
        graph = graphs.bound(host, values)
    io = session.io_binding()
    for name, value in values.items():
        io.bind_ortvalue_input(name, value)
    for name in names:
        if name in fixed:
            io.bind_ortvalue_output(name, as_ortvalue(ort, fixed[name]))
        else:
            io.bind_output(name, devices.device, devices.number)
    return Binding(session, io, bound, fixed, names, devices, graph)


def _check_graph(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value], devices: SessionDevices
) -> None:
    """Refuse memory that a graph could not read or write: it would use that of its capture."""
    for name, value in inputs.items():
        is_host = name in devices.on_host
        wanted = HOST if is_host else GPU
        if device_of(value) != wanted or (is_host and not isinstance(value, np.ndarray)):
            raise UserError(
                f"is not in the {'host' if is_host else 'device'}'s memory, where a CUDA "
                "graph reads it",
                where=f"input {name!r}",
            )
    for name, value in outputs.items():
        if device_of(value) != GPU:
            raise UserError(
                "is not in the device's memory, where a CUDA graph writes it",
                where=f"output {name!r}",
                fix="leave it out, and copy it after the run",
            )


def run_on_values(
    ort: ModuleType,
    session: Any,
    feeds: Mapping[str, Any],
    names: Sequence[str],
    specs: Iterable[TensorSpec],
) -> dict[str, Any]:
    """Run where an element type is one that ONNX Runtime's `run` does not give back."""
    io = session.io_binding()
    for name, value in feeds.items():
        io.bind_ortvalue_input(name, as_ortvalue(ort, value))
    for name in names:
        io.bind_output(name, HOST, 0)
    session.run_with_iobinding(io)
    by_name = {spec.name: spec for spec in specs}
    return {
        name: as_array(ort, value, by_name[name])
        for name, value in zip(names, io.get_outputs(), strict=True)
    }
