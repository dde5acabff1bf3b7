"""CUDA graphs of a model without padding: one for each number of tokens, rounded up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.runtime.capture_gate import GATE
from ortkit.runtime.cuda_graphs import BoundGraph, CapturedRuns
from ortkit.runtime.feeds import Array
from ortkit.runtime.graph_sizes import graph_size
from ortkit.runtime.loading import Loaded
from ortkit.runtime.memory_devices import GPU, SessionDevices, devices_of
from ortkit.runtime.specs import specs_of

#: Of a binding, each for a number of tokens; the one not used for longest goes first.
_MOST_BOUND = 16


@dataclass(frozen=True)
class Chooser:
    """The session that says which tokens there are.

    Args:
        runs: Its graphs.
        session: The `InferenceSession`.
        inputs: The names of its inputs.
    """

    runs: CapturedRuns
    session: Any
    inputs: frozenset[str]


def graphs_of(
    ort: ModuleType, loaded: Loaded, devices: SessionDevices
) -> CapturedRuns | PackedRuns:
    """Return the graphs of a session, which keeps its memory on `devices`.

    Raises:
        UserError: Replays of the model would not compute what runs do.
    """
    runs = CapturedRuns(ort, loaded.session, loaded.inputs, loaded.outputs, devices)
    if loaded.packed is None:
        return runs
    session = loaded.chooser
    inputs = specs_of(session.get_inputs())
    outputs = specs_of(session.get_outputs())
    choosing = CapturedRuns(ort, session, inputs, outputs, devices_of(session))
    chooser = Chooser(choosing, session, frozenset(spec.name for spec in inputs))
    return PackedRuns(ort, runs, chooser, loaded, devices)


class PackedRuns:
    """Finds the tokens of a run, then replays the graph for as many.

    What says which tokens there are is a graph, too. Between the two, the host makes indices.
    """

    def __init__(
        self,
        ort: ModuleType,
        runs: CapturedRuns,
        chooser: Chooser,
        loaded: Loaded,
        devices: SessionDevices,
    ) -> None:
        """Take over the graphs of both parts of a model."""
        assert loaded.packed is not None, "there is a chooser"
        self._ort, self._runs, self.chooser = ort, runs, chooser
        self.model, self._devices = loaded.packed, devices
        self.output_device = GPU, devices.number
        """Where outputs are reserved."""
        self.names = frozenset(spec.name for spec in loaded.inputs)
        """The inputs of the second part."""

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Run on feeds that were checked; new shapes, and new numbers of tokens, are captured.

        Raises:
            UserError: The model cannot be captured.
        """
        model = self.model
        given = {**feeds, model.zero: np.zeros(1, np.int64)}
        asked = {name: given[name] for name in self.chooser.inputs if name in given}
        made = self.chooser.runs.run(asked, list(dict.fromkeys((*model.kept, *model.passed))))
        given |= {name: made[name] for name in model.passed}
        given |= {
            name: indices_of(made[kept])
            for name, kept in zip(model.indices, model.kept, strict=True)
        }
        return self._runs.run({n: v for n, v in given.items() if n in self.names}, names)

    def bound(self, host: Mapping[str, Array], inputs: Mapping[str, Any]) -> PackedBound:
        """Return the graphs of a binding with memory of its own; each is captured when needed.

        Args:
            host: The bound inputs that the host reads.
            inputs: All bound inputs, as OrtValues.

        Raises:
            UserError: What the host reads is too large to be watched.
        """
        return PackedBound(self, host, inputs)

    def graph_of(self, host: Mapping[str, Array]) -> BoundGraph:
        """Return a graph of the second part, on bound memory."""
        return self._runs.bound(host, {})

    def on_device(self, array: Array) -> Any:
        """Return an OrtValue with a copy on the device."""
        return self._ort.OrtValue.ortvalue_from_numpy(array, GPU, self._devices.number)

    def close(self) -> None:
        """Release all graphs and their buffers."""
        self.chooser.runs.close()
        self._runs.close()


class PackedBound:
    """The graphs of one binding, by numbers of tokens."""

    def __init__(
        self, runs: PackedRuns, host: Mapping[str, Array], inputs: Mapping[str, Any]
    ) -> None:
        """Take what `PackedRuns.bound` gives."""
        self._runs, self._host = runs, dict(host)
        self._graphs: OrderedDict[tuple[int, ...], tuple[BoundGraph, dict[str, Any]]]
        self._graphs = OrderedDict()
        chooser, self._zero = runs.chooser, runs.on_device(np.zeros(1, np.int64))
        self._io = chooser.session.io_binding()
        given = {**inputs, runs.model.zero: self._zero}
        for name in chooser.inputs & set(given):
            self._io.bind_ortvalue_input(name, given[name])
        self._made = tuple(dict.fromkeys((*runs.model.kept, *runs.model.passed)))
        self._read = {name: array for name, array in host.items() if name in chooser.inputs}
        self._choosing = chooser.runs.bound(self._read, {})
        self._bind_made()

    def _bind_made(self) -> None:
        """Let ONNX Runtime reserve what the first part makes, when it is captured."""
        for name in self._made:
            self._io.bind_output(name, *self._runs.output_device)

    def run(self, io: Any, options: Any = None) -> None:
        """Replay on what the bound memory holds now.

        Args:
            io: The binding, whose other inputs are bound here.
            options: An `onnxruntime.RunOptions`.

        Raises:
            UserError: The model cannot be captured.
        """
        model = self._runs.model
        self._choosing.run(self._io)
        made = dict(zip(self._made, self._io.get_outputs(), strict=True))
        with GATE:
            indices = [indices_of(made[name].numpy()) for name in model.kept]
        key = tuple(each.size for each in indices)
        found = self._graphs.get(key)
        if found is None:
            while len(self._graphs) >= _MOST_BOUND:
                self._graphs.popitem(last=False)[1][0].release()
            with GATE:
                values = map(self._runs.on_device, indices)
                memory = dict(zip(model.indices, values, strict=True))
            found = self._graphs[key] = self._runs.graph_of(self._host), memory
        else:
            self._graphs.move_to_end(key)
            with GATE:
                for value, array in zip(found[1].values(), indices, strict=True):
                    value.update_inplace(array)
        graph, memory = found
        passed = {name: made[name] for name in model.passed}
        for name, value in {**memory, **passed, model.zero: self._zero}.items():
            if name in self._runs.names:
                io.bind_ortvalue_input(name, value)
        graph.run(io, options)

    @property
    def is_stale(self) -> bool:
        """Whether the host would read something else now than when a graph was captured."""
        graphs = [graph for graph, _ in self._graphs.values()]
        return any(graph.is_stale for graph in (self._choosing, *graphs))

    def release(self) -> None:
        """Let go of the graphs; the memory stays the binding's."""
        self._choosing.release()
        self._bind_made()
        while self._graphs:
            self._graphs.popitem()[1][0].release()


def indices_of(kept: Array) -> Array:
    """Return the indices of tokens, [1, as many as the graph for them has], of int64.

    The last ones repeat the first: rows are computed for them that nothing reads.
    """
    found = np.flatnonzero(kept)
    size = min(graph_size(found.size), kept.size)
    padded = np.full((1, size), found[0] if found.size else 0, np.int64)
    padded[0, : found.size] = found
    return padded
