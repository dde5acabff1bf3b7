"""Runs captured as CUDA graphs, one for each set of input shapes, and replayed."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.errors import RunError, UserError
from ortkit.operators import where
from ortkit.runtime.capture_gate import GATE
from ortkit.runtime.feeds import Array, shape_of
from ortkit.runtime.memory_devices import GPU, SessionDevices
from ortkit.runtime.options import explained
from ortkit.runtime.sharing import as_array, copy_into, wait_for_default_stream
from ortkit.runtime.specs import TensorSpec

GRAPH_ID = "gpu_graph_id"
#: Each holds its buffers on the device; the one not used for longest goes first.
MOST_GRAPHS = 32
#: Values of inputs that the host reads become part of what a graph is for; these are few.
_MOST_HOST_BYTES = 4096
#: A replay would give the same numbers again.
_RANDOM = where(random=True, training_input=None)


@dataclass(frozen=True)
class Slot:
    """Room for one graph of a session, and the options that name it."""

    graph: int
    options: Any


@dataclass(frozen=True)
class _Captured:
    slot: Slot
    io: Any
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class CapturedRuns:
    """Captures a session's runs; its graphs share one stream, so that runs are serialized.

    A graph reads and writes the memory it was captured with, and what the host read then (the
    values of inputs such as the ends of a Slice) stays in it as it was.
    """

    def __init__(
        self,
        ort: ModuleType,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        devices: SessionDevices,
    ) -> None:
        """Take over a session whose CUDA provider has `enable_cuda_graph`.

        Raises:
            UserError: Replays of the model would not compute what runs do.
        """
        self._ort = ort
        self._session = session
        self._specs = {spec.name: spec for spec in (*inputs, *outputs)}
        self._names = [spec.name for spec in outputs]
        self._devices = devices
        self._captured: OrderedDict[object, _Captured] = OrderedDict()
        #: Graphs of bindings that are gone: released before the next capture.
        self.dropped: deque[Slot] = deque()
        self._next = 1
        self._lock = threading.Lock()
        _check_ops(session)

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Run on feeds that were checked; the first run with new shapes captures.

        Raises:
            UserError: The model cannot be captured.
        """
        shapes = tuple(sorted((name, shape_of(value)) for name, value in feeds.items()))
        with self._lock:
            self._check_open()
            key = (shapes, self._host_values(feeds))
            found = self._captured.get(key)
            if found is None:
                self._make_room()
                with GATE.alone():
                    found = self._captured[key] = self._capture(feeds)
            else:
                self._captured.move_to_end(key)
                with GATE:
                    self._fill(found.inputs, feeds)
                    self._session.run_with_iobinding(found.io, found.slot.options)
            with GATE:
                return {
                    name: as_array(self._ort, found.outputs[name], self._specs[name])
                    for name in names
                }

    def bound(self, host: Mapping[str, Array], inputs: Mapping[str, Any]) -> BoundGraph:  # noqa: ARG002
        """Return the graph of a binding with memory of its own; its first run captures.

        Args:
            host: The bound inputs that the host reads.
            inputs: All bound inputs, as OrtValues; a graph reads them where they are.

        Raises:
            UserError: They are too large to be watched.
        """
        self._host_values(host)
        return BoundGraph(self, host)

    def replay(self, io: Any, slot: Slot | None, options: Any) -> Slot:
        """Run a binding on its graph, or capture one if there is none yet; return which.

        Raises:
            UserError: The model cannot be captured, or the session is closed.
        """
        with self._lock:
            self._check_open()
            if slot is None:
                self._make_room()
            found = slot or self._slot()
            if options is not None:
                options.add_run_config_entry(GRAPH_ID, str(found.graph))
            try:
                with GATE if slot else GATE.alone():
                    self._session.run_with_iobinding(io, options or found.options)
            except Exception as error:
                raise explained(error) if slot else not_captured(error) from error
            return found

    def release(self, slot: Slot) -> None:
        """Let go of a binding's graph."""
        with self._lock, GATE:
            if self._session is not None:
                self._release(slot)

    def close(self) -> None:
        """Release all graphs and their buffers."""
        with self._lock, GATE:
            while self._captured:
                self._release(self._captured.popitem()[1].slot)
            self._session = None

    def _make_room(self) -> None:
        with GATE:
            while self.dropped:
                self._release(self.dropped.popleft())
            while len(self._captured) >= MOST_GRAPHS:
                self._release(self._captured.popitem(last=False)[1].slot)

    def _check_open(self) -> None:
        if self._session is None:
            raise UserError("the session is closed", fix="make a new one")

    def _host_values(self, feeds: Mapping[str, Any]) -> tuple[tuple[str, bytes], ...]:
        values = []
        for name in sorted(self._devices.on_host & set(feeds)):
            array = _on_host(feeds[name])
            if array.dtype.kind in "OUST" or array.nbytes > _MOST_HOST_BYTES:
                raise UserError(
                    f"input {name!r} is read by the host, and a graph would keep its values",
                    where="cuda_graph",
                    fix="use cuda_graph=False",
                )
            values.append((name, array.tobytes()))
        return tuple(values)

    def _capture(self, feeds: Mapping[str, Any]) -> _Captured:
        io = self._session.io_binding()
        inputs = {
            name: _host_copy(self._ort, value)
            if name in self._devices.on_host
            else self._buffer(name, shape_of(value))
            for name, value in feeds.items()
        }
        self._fill(inputs, feeds)
        for name, value in inputs.items():
            io.bind_ortvalue_input(name, value)
        for name in self._names:
            if self._specs[name].dtype is None or not self._specs[name].is_tensor:
                raise UserError(f"{self._specs[name]} cannot be captured", where="cuda_graph")
            io.bind_output(name, GPU, self._devices.number)
        slot = self._slot()
        try:
            # Uncaptured: lets kernels choose and reserve, and gives the outputs their memory.
            self._session.run_with_iobinding(io, self._options(-1))
            outputs = dict(zip(self._names, io.get_outputs(), strict=True))
            for name, value in outputs.items():
                io.bind_ortvalue_output(name, value)
            self._session.run_with_iobinding(io, slot.options)
        except Exception as error:
            raise not_captured(error) from error
        return _Captured(slot, io, inputs, outputs)

    def _fill(self, inputs: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
        is_on_device = False
        for name, value in feeds.items():
            if name in self._devices.on_host:
                continue
            if isinstance(value, np.ndarray):
                inputs[name].update_inplace(np.ascontiguousarray(value))
            else:
                copy_into(inputs[name], value)
                is_on_device = True
        if is_on_device:  # copies within a device go on while the host does something else
            wait_for_default_stream(self._devices.number)

    def _buffer(self, name: str, shape: tuple[int, ...] | None) -> Any:
        spec = self._specs[name]
        if spec.dtype is None or spec.dtype.kind == "O" or shape is None:
            raise UserError(f"{spec} cannot be captured", where="cuda_graph")
        element = spec.dtype if spec.onnx_code is None else spec.onnx_code
        return self._ort.OrtValue.ortvalue_from_shape_and_type(
            list(shape), element, GPU, self._devices.number
        )

    def _slot(self) -> Slot:
        made = Slot(self._next, self._options(self._next))
        self._next += 1
        return made

    def _options(self, graph: int) -> Any:
        options = self._ort.RunOptions()
        options.add_run_config_entry(GRAPH_ID, str(graph))
        return options

    def _release(self, slot: Slot) -> None:
        if hasattr(self._session, "release_captured_graph"):
            self._session.release_captured_graph(slot.graph)


class BoundGraph:
    """The graph of one binding; to be released when what the host reads has changed."""

    def __init__(self, runs: CapturedRuns, host: Mapping[str, Array]) -> None:
        """Take what `CapturedRuns.bound` gives."""
        self._runs = runs
        self._host = dict(host)
        self._read: tuple[bytes, ...] = ()
        self._slot: Slot | None = None
        self._on_end: weakref.finalize[..., BoundGraph] | None = None

    def run(self, io: Any, options: Any = None) -> None:
        """Replay on what the bound memory holds now.

        Raises:
            UserError: The model cannot be captured.
        """
        if self._slot is None:
            self._read = self._reads()
            self._slot = self._runs.replay(io, None, options)
            # Only noted: the collector may come in the middle of a run, where the lock is taken.
            self._on_end = weakref.finalize(self, self._runs.dropped.append, self._slot)
            self._on_end.atexit = False
            return
        self._runs.replay(io, self._slot, options)

    @property
    def is_stale(self) -> bool:
        """Whether the host would read something else now than when the graph was captured."""
        return bool(self._host) and self._slot is not None and self._reads() != self._read

    def _reads(self) -> tuple[bytes, ...]:
        return tuple(array.tobytes() for array in self._host.values())

    def release(self) -> None:
        """Let go of the graph; the memory stays the binding's."""
        slot, self._slot = self._slot, None
        if slot is not None:
            if self._on_end is not None:
                self._on_end.detach()
            self._runs.release(slot)


def not_captured(error: BaseException) -> UserError:
    """Return why a run could not be captured, on one line; lack of memory stays that."""
    problem = explained(error).problem
    if problem.startswith("out of memory"):
        return RunError(problem, fix="use smaller inputs or a higher limit")
    return UserError(
        f"the model cannot be captured: {problem}", where="cuda_graph", fix="use cuda_graph=False"
    )


def _check_ops(session: Any) -> None:
    parts = session.get_provider_graph_assignment_info()
    found = sorted({node.op_type for part in parts for node in part.get_nodes()} & _RANDOM)
    if found:
        raise UserError(
            f"{found[0]} would give the same numbers in every replay",
            where="cuda_graph",
            fix="use cuda_graph=False",
        )


def _on_host(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else np.asarray(value.numpy())


def _host_copy(ort: ModuleType, value: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(_on_host(value).copy())
