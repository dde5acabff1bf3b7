"""A provider in Python as native code knows it."""

from __future__ import annotations

import ctypes
import itertools

from ortkit.errors import UserError
from ortkit.provider import bridge, native
from ortkit.provider.base import ExecutionProvider
from ortkit.provider.devices import HARDWARE, MEMORY_TYPES, Device
from ortkit.provider.memory_callbacks import MemoryCallbacks
from ortkit.provider.op_callbacks import OpCallbacks
from ortkit.provider.op_kernels import entries_of
from ortkit.provider.sessions import SessionCallbacks


class Definition:
    """Everything that native code points to for one provider; it must never be collected."""

    def __init__(self, provider: ExecutionProvider) -> None:
        """Build it.

        Raises:
            UserError: A device or a kernel of the provider is not right.
        """
        self.provider = provider
        self.callbacks = SessionCallbacks(provider)
        self.memories: dict[int, MemoryCallbacks] = {}
        flags = bridge.PYTHON
        flags |= bridge.READS_CONTEXTS if provider.reads_contexts else 0
        self.struct = bridge.Provider(
            version=bridge.BRIDGE_VERSION,
            flags=flags,
            name=provider.name.encode(),
            vendor=provider.vendor.encode(),
            version_text=provider.version.encode(),
            vendor_id=provider.vendor_id,
        )
        made = [self._device(device) for device in provider.devices]
        self._devices = (bridge.Device * len(made))(*made)
        self.struct.device_count, self.struct.devices = len(made), self._devices
        entries = entries_of(provider.kernels)
        self._ops = OpCallbacks(entries, self.callbacks, keeps_lock=not self.memories)
        self._ops.install(self.struct)
        self.callbacks.install(self.struct)

    def _device(self, device: Device) -> bridge.Device:
        where = f"{type(self.provider).__name__}.devices"
        if device.hardware not in HARDWARE:
            raise UserError(
                f"no hardware is called {device.hardware!r}",
                where=where,
                fix=f"use {', '.join(HARDWARE)}",
            )
        metadata = {str(key): str(value) for key, value in device.metadata.items()}
        made = bridge.Device(HARDWARE[device.hardware], device.vendor_id, native.entries(metadata))
        memory = device.memory
        if memory is None:
            return made
        if memory.kind not in MEMORY_TYPES:
            known = ", ".join(MEMORY_TYPES)
            raise UserError(f"no memory is of a {memory.kind!r}", where=where, fix=f"use {known}")
        if id(memory) not in self.memories:
            self.memories[id(memory)] = MemoryCallbacks(memory)
        callbacks = self.memories[id(memory)]
        made.memory = ctypes.pointer(callbacks.struct)
        return made


class Definitions:
    """All that were made: sessions may outlive the registration that they were made under."""

    def __init__(self) -> None:
        self._all: dict[int, Definition] = {}
        self._numbers = itertools.count(1)

    def define(self, registration: str, provider: ExecutionProvider) -> Definition:
        """Define a provider under the name that ONNX Runtime will register it by.

        Raises:
            UserError: Something of the provider is not right.
        """
        definition = Definition(provider)
        self._all[next(self._numbers)] = definition
        native.define(registration, definition.struct)
        return definition


DEFINITIONS = Definitions()
