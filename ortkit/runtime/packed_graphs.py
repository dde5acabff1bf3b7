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
from ortkit.runtime.packed_model import PackedModel
from ortkit.runtime.specs import specs_of

#: Of a binding, each for a number of tokens; the one not used for longest goes first.
_MOST_BOUND = 16


@dataclass(frozen=True)
class Counter:
    """The session that counts tokens, and what it needs.

    Args:
        runs: Its graphs.
        session: The `InferenceSession`.
        inputs: The names of its inputs, slots among them.
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
    session = loaded.counter
    inputs = specs_of(session.get_inputs())
    outputs = specs_of(session.get_outputs())
    counting = CapturedRuns(ort, session, inputs, outputs, devices_of(session))
    counter = Counter(counting, session, frozenset(spec.name for spec in inputs))
    return PackedRuns(ort, runs, counter, loaded.packed, devices)


class PackedRuns:
    """Counts the tokens of a run, then replays the graph for as many.

    Both are graphs; what the host does between is to read the number.
    """

    def __init__(
        self,
        ort: ModuleType,
        runs: CapturedRuns,
        counter: Counter,
        model: PackedModel,
        devices: SessionDevices,
    ) -> None:
        """Take over the graphs of a model with slots, and those of what counts its tokens."""
        self._ort, self._runs, self.counter = ort, runs, counter
        self.model, self._devices = model, devices

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Run on feeds that were checked; new shapes, and new numbers of tokens, are captured.

        Raises:
            UserError: The model cannot be captured.
        """
        none = dict.fromkeys(self.model.slots, np.zeros(1, np.int64))
        given = {**feeds, **none}
        counted = {name: given[name] for name in self.counter.inputs if name in given}
        counts = self.counter.runs.run(counted, self.model.counts)
        return self._runs.run({**feeds, **self._numbers(counts)}, names)

    def _numbers(self, counts: Mapping[str, Any]) -> dict[str, Array]:
        pairs = zip(self.model.slots, self.model.counts, strict=True)
        return {name: slots_for(int(counts[count].item())) for name, count in pairs}

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
        """Return a graph of the model with slots, on bound memory."""
        return self._runs.bound(host, {})

    def on_device(self, array: Array) -> Any:
        """Return an OrtValue with a copy on the device."""
        return self._ort.OrtValue.ortvalue_from_numpy(array, GPU, self._devices.number)

    def close(self) -> None:
        """Release all graphs and their buffers."""
        self.counter.runs.close()
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
        counter = runs.counter
        self._io = counter.session.io_binding()
        none = {name: runs.on_device(slots_for(0)) for name in runs.model.slots}
        given = {**inputs, **none}
        for name in counter.inputs & set(given):
            self._io.bind_ortvalue_input(name, given[name])
        self._counts = [runs.on_device(np.zeros((1, 1), np.int64)) for _ in runs.model.counts]
        for name, value in zip(runs.model.counts, self._counts, strict=True):
            self._io.bind_ortvalue_output(name, value)
        read = {name: array for name, array in host.items() if name in counter.inputs}
        self._counting = counter.runs.bound(read, {})

    def run(self, io: Any, options: Any = None) -> None:
        """Replay on what the bound memory holds now.

        Args:
            io: The binding, whose inputs for slots are bound here.
            options: An `onnxruntime.RunOptions`.

        Raises:
            UserError: The model cannot be captured.
        """
        self._counting.run(self._io)
        with GATE:
            counts = [int(value.numpy().item()) for value in self._counts]
        key = tuple(map(graph_size, counts))
        found = self._graphs.get(key)
        if found is None:
            while len(self._graphs) >= _MOST_BOUND:
                self._graphs.popitem(last=False)[1][0].release()
            with GATE:
                slots = {
                    name: self._runs.on_device(slots_for(size))
                    for name, size in zip(self._runs.model.slots, key, strict=True)
                }
            found = self._graphs[key] = self._runs.graph_of(self._host), slots
        self._graphs.move_to_end(key)
        graph, slots = found
        for name, value in slots.items():
            io.bind_ortvalue_input(name, value)
        graph.run(io, options)

    @property
    def is_stale(self) -> bool:
        """Whether the host would read something else now than when a graph was captured."""
        graphs = [graph for graph, _ in self._graphs.values()]
        return any(graph.is_stale for graph in (self._counting, *graphs))

    def release(self) -> None:
        """Let go of the graphs; the memory stays the binding's."""
        self._counting.release()
        while self._graphs:
            self._graphs.popitem()[1][0].release()


def slots_for(count: int) -> Array:
    """Return what an input for slots holds for a number of tokens: 0 to the number of slots."""
    return np.arange(graph_size(count) + 1, dtype=np.int64)
