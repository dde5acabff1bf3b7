"""The kernels that native code may call, each alive until native code says that it is gone."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_int32
from functools import cached_property
from typing import Any

from ortkit.provider import bridge, native
from ortkit.provider.kernel import Kernel


class KernelTable:
    """Numbers for kernels: native code knows them by these."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._numbers = itertools.count(1)
        #: `user` of native kernels -> what to keep, and how many of them live.
        self._native: dict[int, list[Kernel]] = {}
        self._living: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept) + sum(self._living.values())

    @cached_property
    def _call(self) -> Any:
        kept = self._kept

        def call(user: int, context: int) -> int:
            code: int = kept[user](context)
            return code

        return bridge.KERNEL_FUNCTION_TYPE(call)

    @cached_property
    def _release(self) -> Any:
        kept = self._kept

        def release(user: int) -> None:
            kept.pop(user, None)

        return bridge.RELEASE(release)

    @cached_property
    def _release_native(self) -> Any:
        return bridge.RELEASE(lambda user: self._forget_native(user or 0))

    def give_python(
        self, kernel: Callable[[int], int], label: str, kernels: int, index: int, error: int
    ) -> None:
        """Let a group or node run Python.

        Args:
            kernel: What is called with the address of an OrtkitKernelContext.
            label: What the trace calls it.
            kernels, index, error: What the callback was handed, and which group it is.
        """
        entry = bridge.Kernel(kind=bridge.KERNEL_PYTHON, label=label.encode("utf-8", "replace"))
        entry.function = _address(self._call)
        self._give(kernel, entry, kernels, index, error)

    def give_native(self, kernel: Kernel, kernels: int, index: int, error: int) -> None:
        """Let a group run something native.

        Raises:
            UserError: It is not complete, or does not load.
        """
        label = kernel.label.encode("utf-8", "replace") or None
        entry = bridge.Kernel(kind=kernel.kind(), label=label)
        entry.arguments = native.entries(_texts(kernel.arguments))
        entry.input_count, entry.inputs = _numbers(kernel.inputs)
        entry.output_count, entry.outputs = _numbers(kernel.outputs)
        opened = kernel.open_library()
        try:
            if opened is None:
                entry.function = kernel.address()
                self._give_own(kernel, entry, kernels, index, error)
            else:
                entry.library, entry.op_type = opened.handle, kernel.op.encode()
                self._give_own(kernel, entry, kernels, index, error)
        finally:
            if opened is not None and opened is not kernel.library:
                opened.close()

    def _give_own(
        self, kernel: Kernel, entry: bridge.Kernel, kernels: int, index: int, error: int
    ) -> None:
        """The kernel's own `user` stays as it is, so the table cannot go by it."""
        entry.user = kernel.user
        is_address = kernel.function is None or isinstance(kernel.function, int)
        if kernel.keep is None and is_address:
            native.set_kernel(kernels, index, entry, error)
            return
        entry.release = _address(self._release_native)
        with self._lock:
            self._native.setdefault(kernel.user, []).append(kernel)
            self._living[kernel.user] = self._living.get(kernel.user, 0) + 1
        try:
            native.set_kernel(kernels, index, entry, error)
        except BaseException:
            self._forget_native(kernel.user)
            raise

    def _forget_native(self, user: int) -> None:
        """Count one down: which of several with the same `user` it was is not known."""
        with self._lock:
            self._living[user] -= 1
            if not self._living[user]:
                del self._living[user], self._native[user]

    def _give(
        self, kernel: object, entry: bridge.Kernel, kernels: int, index: int, error: int
    ) -> None:
        number = next(self._numbers)
        entry.user, entry.release = number, _address(self._release)
        self._kept[number] = kernel
        try:
            native.set_kernel(kernels, index, entry, error)
        except BaseException:
            self._kept.pop(number, None)
            raise


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


def _texts(values: Mapping[str, str]) -> dict[str, str]:
    return {str(key): str(value) for key, value in values.items()}


def _numbers(indices: Sequence[int] | None) -> tuple[int, Any]:
    if indices is None:
        return 0, None
    return len(indices), ctypes.cast((c_int32 * len(indices))(*indices), POINTER(c_int32))


#: The process has one: sessions of all providers share it.
KERNELS = KernelTable()
