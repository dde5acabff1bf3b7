"""Runs captured as CUDA graphs, one for each set of input shapes, and replayed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.errors import UserError
from ortkit.runtime.feeds import shape_of
from ortkit.runtime.options import message
from ortkit.runtime.specs import TensorSpec

GRAPH_ID = "gpu_graph_id"
#: Each holds its buffers on the device; the one not used for longest goes first.
MOST_GRAPHS = 32


@dataclass(frozen=True)
class _Captured:
    options: Any
    graph: int
    io: Any
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class CapturedRuns:
    """Captures a session's runs; a graph reads and writes fixed buffers, so runs take turns."""

    def __init__(
        self,
        ort: ModuleType,
        session: Any,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
    ) -> None:
        """Take over a session whose CUDA provider has `enable_cuda_graph`."""
        self._ort = ort
        self._session = session
        self._specs = {spec.name: spec for spec in (*inputs, *outputs)}
        self._names = [spec.name for spec in outputs]
        self._captured: OrderedDict[object, _Captured] = OrderedDict()
        self._next = 1
        self._lock = threading.Lock()

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Run on feeds that were checked; the first run with new shapes captures.

        Raises:
            UserError: The model cannot be captured.
        """
        key = tuple(sorted((name, shape_of(value)) for name, value in feeds.items()))
        with self._lock:
            found = self._captured.get(key)
            if found is None:
                found = self._capture(feeds)
                self._captured[key] = found
                if len(self._captured) > MOST_GRAPHS:
                    self._drop(self._captured.popitem(last=False)[1])
            else:
                self._captured.move_to_end(key)
                self._replay(found, feeds)
            return {name: found.outputs[name].numpy() for name in names}

    def close(self) -> None:
        """Release all graphs and their buffers."""
        with self._lock:
            while self._captured:
                self._drop(self._captured.popitem()[1])
            self._session = None

    def _capture(self, feeds: Mapping[str, Any]) -> _Captured:
        # Uncaptured: tells the outputs' shapes, and lets kernels choose and reserve.
        plain = self._session.run(self._names, dict(feeds), self._options(-1))
        io = self._session.io_binding()
        inputs = {name: self._buffer(name, shape_of(value)) for name, value in feeds.items()}
        outputs = {
            name: self._buffer(name, shape_of(value))
            for name, value in zip(self._names, plain, strict=True)
        }
        for name, value in inputs.items():
            io.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            io.bind_ortvalue_output(name, value)
        made = _Captured(self._options(self._next), self._next, io, inputs, outputs)
        self._next += 1
        try:
            self._replay(made, feeds)
        except Exception as error:
            raise UserError(
                f"the model cannot be captured: {message(error)}",
                where="cuda_graph",
                fix="use cuda_graph=False",
            ) from error
        return made

    def _replay(self, captured: _Captured, feeds: Mapping[str, Any]) -> None:
        for name, value in feeds.items():
            array = value if isinstance(value, np.ndarray) else value.numpy()
            captured.inputs[name].update_inplace(np.ascontiguousarray(array))
        self._session.run_with_iobinding(captured.io, captured.options)

    def _buffer(self, name: str, shape: tuple[int, ...] | None) -> Any:
        spec = self._specs[name]
        if spec.dtype is None or spec.dtype.kind == "O" or shape is None:
            raise UserError(f"{spec} cannot be captured", where="cuda_graph")
        element = spec.dtype if spec.onnx_code is None else spec.onnx_code
        return self._ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, "cuda", 0)

    def _options(self, graph: int) -> Any:
        options = self._ort.RunOptions()
        options.add_run_config_entry(GRAPH_ID, str(graph))
        return options

    def _drop(self, captured: _Captured) -> None:
        if hasattr(self._session, "release_captured_graph"):
            self._session.release_captured_graph(captured.graph)
