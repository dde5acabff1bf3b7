"""Where a session's memory is: its device, and which inputs stay with the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortkit.runtime.targets import CUDA

#: What ONNX Runtime calls the host's memory and that of a GPU: devices, no targets.
HOST, GPU = "cpu", "cuda"


@dataclass(frozen=True)
class SessionDevices:
    """The device that a session computes on, and what the host reads instead."""

    computes: str
    """`GPU` or `HOST`."""
    device: str
    """The same, or where a binding's memory is to be instead."""
    number: int
    """Of the GPU."""
    on_host: frozenset[str]
    """Inputs that kernels want in the host's memory, such as the ends of a Slice."""

    def wants(self, name: str) -> str:
        """Return the device that an input is read on."""
        return HOST if name in self.on_host else self.device


def devices_of(session: Any) -> SessionDevices:
    """Ask an `InferenceSession` where its inputs are wanted."""
    if session.get_providers()[0] != CUDA:
        return SessionDevices(HOST, HOST, 0, frozenset())
    names = [argument.name for argument in session.get_inputs()]
    infos = session.get_input_memory_infos()
    on_host = {name for name, info in zip(names, infos, strict=True) if info.name != "Cuda"}
    return SessionDevices(GPU, GPU, _number(session.get_provider_options()), frozenset(on_host))


def _number(options: Mapping[str, Mapping[str, str]]) -> int:
    return int(options.get(CUDA, {}).get("device_id", "0"))
