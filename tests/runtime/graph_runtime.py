"""A stand-in for onnxruntime on CUDA: a graph keeps the memory of its capture, and host values.

That is what onnxruntime-gpu 1.31.1 was seen to do on an H100 (2026-11).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

#: Of the device.
MEMORY_BYTES = 1 << 20


class OrtValue:
    """Device memory, on the host."""

    def __init__(self, array: np.ndarray[Any, Any], device: str) -> None:
        self.array, self._device = array, device

    @classmethod
    def ortvalue_from_numpy(
        cls, array: np.ndarray[Any, Any], device: str = "cpu", number: int = 0
    ) -> OrtValue:
        if array.nbytes > MEMORY_BYTES and device != "cpu":
            raise RuntimeError(
                f"Failed to allocate memory for requested buffer of size {array.nbytes}"
            )
        return cls(array if device == "cpu" else array.copy(), device)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element: Any, device: str = "cpu", number: int = 0
    ) -> OrtValue:
        return cls(np.zeros(shape, element), device)

    def device_name(self) -> str:
        return self._device

    def shape(self) -> list[int]:
        return list(self.array.shape)

    def is_tensor(self) -> bool:
        return True

    def data_type(self) -> str:
        names = {"float32": "float"}
        return f"tensor({names.get(self.array.dtype.name, self.array.dtype.name)})"

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array.copy() if self._device == "cuda" else self.array

    def update_inplace(self, given: Any) -> None:
        self.array[...] = given.array if isinstance(given, OrtValue) else given


class RunOptions:
    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


class _Binding:
    def __init__(self) -> None:
        self.inputs: dict[str, OrtValue] = {}
        self.outputs: dict[str, OrtValue | None] = {}

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self.inputs[name] = value

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self.outputs[name] = value

    def bind_output(self, name: str, device: str, number: int) -> None:
        self.outputs[name] = None

    def get_outputs(self) -> list[OrtValue | None]:
        return list(self.outputs.values())

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()


class Session:
    """Computes y = x * k, with `k` read by the host."""

    def __init__(self, ops: Sequence[str] = ("Mul",)) -> None:
        self._ops = ops
        self.graphs: dict[int, tuple[_Binding, np.ndarray[Any, Any]]] = {}
        self.released: list[int] = []

    def get_provider_graph_assignment_info(self) -> list[Any]:
        nodes = [SimpleNamespace(op_type=op) for op in self._ops]
        return [SimpleNamespace(get_nodes=lambda: nodes)]

    def io_binding(self) -> _Binding:
        return _Binding()

    def run_with_iobinding(self, io: _Binding, options: RunOptions | None) -> None:
        graph = 0 if options is None else int(options.entries["gpu_graph_id"])
        for name, value in io.outputs.items():
            io.outputs[name] = value or OrtValue(io.inputs["x"].array * 0, "cuda")
        now = _Binding()
        now.inputs, now.outputs = dict(io.inputs), dict(io.outputs)
        found = (now, io.inputs["k"].array.copy())
        held, k = self.graphs.setdefault(graph, found) if graph >= 0 else found
        place = held.outputs["y"]
        assert place is not None
        place.array[...] = held.inputs["x"].array * k

    def release_captured_graph(self, graph: int) -> None:
        self.graphs.pop(graph)
        self.released.append(graph)


def runtime() -> ModuleType:
    module = ModuleType("onnxruntime")
    module.OrtValue = OrtValue  # type: ignore[attr-defined]
    module.RunOptions = RunOptions  # type: ignore[attr-defined]
    return module


class ModelSession(Session):
    """Computes what a model does, on the CPU; a graph keeps the memory of its capture."""

    def __init__(self, model: bytes | str) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.model = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self.captures = 0

    def get_inputs(self) -> list[Any]:
        return list(self.model.get_inputs())

    def get_outputs(self) -> list[Any]:
        return list(self.model.get_outputs())

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def run_with_iobinding(self, io: _Binding, options: RunOptions | None) -> None:
        graph = -1 if options is None else int(options.entries["gpu_graph_id"])
        held = _Binding()
        held.inputs, held.outputs = dict(io.inputs), io.outputs
        if graph in self.graphs:
            held = self.graphs[graph][0]
        feeds = {name: value.array for name, value in held.inputs.items()}
        names = list(held.outputs)
        for name, array in zip(names, self.model.run(names, feeds), strict=True):
            value = held.outputs[name] = held.outputs[name] or OrtValue(
                np.zeros_like(array), "cuda"
            )
            assert value.array.shape == array.shape, "a graph writes what it was captured with"
            value.array[...] = array
        if graph >= 0 and graph not in self.graphs:
            held.outputs = dict(held.outputs)
            self.graphs[graph] = held, np.zeros(0)
            self.captures += 1
