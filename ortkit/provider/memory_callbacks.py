"""A device's own memory as native code asks for it: addresses, copies, streams."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

from ortkit.errors import UserError
from ortkit.provider import bridge
from ortkit.provider.devices import MEMORY_TYPES, DeviceMemory, Place, StreamedMemory
from ortkit.provider.failures import describe
from ortkit.provider.handles import OBJECTS
from ortkit.provider.sessions import guarded

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class MemoryCallbacks:
    """The callbacks of one `DeviceMemory`; alive as long as the process."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._where = type(memory).__name__
        self._objects = OBJECTS
        self.struct = bridge.Memory(
            name=memory.name.encode(),
            device_type=MEMORY_TYPES[memory.kind],
            has_streams=isinstance(memory, StreamedMemory),
            alignment=memory.alignment,
            allocate=bridge.ALLOCATE(self._allocate),
            free=bridge.FREE(self._free),
            copy=bridge.COPY(guarded(self._copy, f"{self._where}.copy")),
        )
        if isinstance(memory, StreamedMemory):
            self._add_streams(memory)

    def _add_streams(self, memory: StreamedMemory) -> None:
        struct = self.struct

        def make(method: str) -> Any:
            create: Callable[[Any], object] = getattr(memory, method)

            def inner(_user: int, of: int, handle: Any, _error: int) -> None:
                is_stream = method == "create_stream"
                handle[0] = self._number(create(of if is_stream else self._objects[of]))

            return guarded(inner, f"{self._where}.{method}")

        def use(method: str) -> Any:
            function: Callable[[object], None] = getattr(memory, method)

            def inner(_user: int, handle: int, _error: int) -> None:
                function(self._objects[handle])

            return guarded(inner, f"{self._where}.{method}")

        def release(method: str) -> Callable[[int, int], None]:
            function: Callable[[object], None] = getattr(memory, method)

            def inner(_user: int, handle: int) -> None:
                self._quietly(method, lambda: function(self._objects.pop(handle)))

            return inner

        def wait(_user: int, notification: int, stream: int, _error: int) -> None:
            memory.wait_on_device(self._objects[notification], self._objects[stream])

        struct.create_stream = bridge.CREATE_STREAM(make("create_stream"))
        struct.release_stream = bridge.RELEASE_HANDLE(release("release_stream"))
        struct.flush = bridge.WITH_HANDLE(use("flush"))
        struct.stream_run_end = bridge.WITH_HANDLE(use("end_run"))
        struct.create_notification = bridge.CREATE_NOTIFICATION(make("create_notification"))
        struct.release_notification = bridge.RELEASE_HANDLE(release("release_notification"))
        struct.activate = bridge.WITH_HANDLE(use("activate"))
        struct.wait_on_device = bridge.WAIT_ON_DEVICE(
            guarded(wait, f"{self._where}.wait_on_device")
        )
        struct.wait_on_host = bridge.WITH_HANDLE(use("wait_on_host"))

    def _number(self, made: object) -> int:
        number = next(_numbers)
        self._objects[number] = made
        return number

    def _allocate(self, _user: int, device: int, size: int, stream: int) -> int | None:
        found: list[int] = []
        self._quietly(
            "allocate",
            lambda: found.append(self._memory.allocate(device, size, self._objects.get(stream))),
        )
        return found[0] if found else None

    def _free(self, _user: int, device: int, address: int) -> None:
        self._quietly("free", lambda: self._memory.free(device, address))

    def _copy(
        self,
        _user: int,
        source: int,
        source_place: bridge.Place,
        target: int,
        target_place: bridge.Place,
        size: int,
        stream: int,
        _error: int,
    ) -> None:
        if not source or not target:
            # ONNX Runtime copies initializers to where `allocate` found no room.
            raise UserError(f"there is no room for {size} bytes on the device")
        self._memory.copy(
            _place(source, source_place),
            _place(target, target_place),
            size,
            self._objects.get(stream),
        )

    def _quietly(self, method: str, call: Callable[[], None]) -> None:
        """Call what has no way to fail; an exception is logged, for ONNX Runtime has no ear."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - it must not leave the callback
            _log.error("%s", describe(error, f"{self._where}.{method}"))


def _place(address: int | None, place: bridge.Place) -> Place:
    return Place(address or 0, place.device if place.is_ours else None)
