"""Kernels for single operators, made when ONNX Runtime meets a node that one fits."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_size_t
from typing import Any

from ortkit.provider import bridge
from ortkit.provider.kernel_table import KERNELS
from ortkit.provider.node_attributes import read_attributes
from ortkit.provider.op_kernels import OpEntry
from ortkit.provider.python_kernel import PythonKernel
from ortkit.provider.sessions import SessionCallbacks, guarded
from ortkit.provider.slots import Slots


class OpCallbacks:
    """The entries of one provider's `kernels`; alive as long as the process."""

    def __init__(
        self, entries: Sequence[OpEntry], sessions: SessionCallbacks, *, keeps_lock: bool
    ) -> None:
        """Build the entries.

        Args:
            entries: The provider's kernels.
            sessions: The provider's sessions.
            keeps_lock: See `PythonKernel`.
        """
        self._sessions = sessions
        self._keeps_lock = keeps_lock
        self._kept: list[object] = []
        self._entries = (bridge.KernelEntry * len(entries))(*map(self._entry, entries))

    def install(self, definition: bridge.Provider) -> None:
        """Put the entries into a definition."""
        definition.kernel_count = len(self._entries)
        definition.kernels = self._entries

    def _entry(self, entry: OpEntry) -> bridge.KernelEntry:
        constraints = (bridge.TypeConstraint * len(entry.types))(
            *(
                bridge.TypeConstraint(name.encode(), *_array([int(type_) for type_ in types]))
                for name, types in entry.types.items()
            )
        )
        where = f"kernel {entry.name}"
        create = bridge.CREATE_KERNEL(guarded(functools.partial(self._create, entry), where))
        self._kept.extend((constraints, create))
        cpu_inputs, cpu_outputs = entry.kernel.cpu_inputs, entry.kernel.cpu_outputs
        made = bridge.KernelEntry(
            entry.domain.encode(),
            entry.op_type.encode(),
            entry.first_version,
            entry.last_version,
            len(constraints),
            constraints,
            *_array(cpu_inputs),
            *_array(cpu_outputs),
        )
        made.create = create
        return made

    def _create(
        self, entry: OpEntry, _user: int, ep: int, request: Any, kernels: int, error: int
    ) -> None:
        slots, info = Slots(request.contents.api), request.contents.info
        attributes = read_attributes(slots, info, entry.attributes)
        function = entry.kernel.function
        if attributes:
            function = functools.partial(function, **attributes)
        node = _node_name(slots, info)
        kernel = PythonKernel(function, expected=None, keeps_lock=self._keeps_lock)
        KERNELS.give_python(
            self._sessions.in_turn(kernel, ep), node or entry.op_type, kernels, 0, error
        )


def _node_name(slots: Slots, info: int) -> str:
    size = c_size_t()
    slots.check(slots.KernelInfo_GetNodeName(info, None, ctypes.byref(size)))
    room = ctypes.create_string_buffer(max(size.value, 1))
    slots.check(slots.KernelInfo_GetNodeName(info, room, ctypes.byref(size)))
    return room.value.decode(errors="replace")


def _array(numbers: Sequence[int]) -> tuple[int, Any]:
    return len(numbers), ctypes.cast((c_int32 * len(numbers))(*numbers), POINTER(c_int32))
