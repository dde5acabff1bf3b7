"""What a Python kernel may ask about the call that it is in."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ortkit.errors import UserError
from ortkit.provider.bridge import KernelContext
from ortkit.provider.handles import OBJECTS
from ortkit.provider.native import entries, library
from ortkit.provider.views import memory_array


class KernelCall:
    """One call of a kernel; valid until the kernel returns."""

    def __init__(self, context: int) -> None:
        """Take the address of an OrtkitKernelContext."""
        self._address = context

    @property
    def stream(self) -> object | None:
        """What the device's `create_stream` returned for this run; None without streams."""
        return OBJECTS.get(KernelContext.from_address(self._address).stream or 0)

    @property
    def is_profiling(self) -> bool:
        """Whether events go anywhere."""
        return bool(library().ortkit_provider_is_profiling(self._address))

    def addresses(self) -> tuple[int, ...]:
        """Return where the inputs lie; 0 for those that are absent."""
        context = KernelContext.from_address(self._address)
        return tuple(context.data[index] or 0 for index in range(context.input_count))

    def scratch(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory of this many bytes that lasts until the kernel returns.

        Raises:
            UserError: There is not so much.
        """
        context = KernelContext.from_address(self._address)
        address = context.scratch(ctypes.pointer(context), size)
        if not address:
            raise UserError(f"there is no memory for {size} bytes")
        return memory_array(address, np.dtype(np.uint8), (size,))

    @contextmanager
    def event(self, name: str, arguments: Mapping[str, str] | None = None) -> Iterator[None]:
        """Show what happens inside as an event of the session's trace, if it has one."""
        if not self.is_profiling:
            yield
            return
        begin = library().ortkit_provider_now()
        try:
            yield
        finally:
            pairs = entries(arguments or {})
            library().ortkit_provider_add_event(
                self._address,
                name.encode("utf-8", "replace"),
                begin,
                library().ortkit_provider_now(),
                ctypes.byref(pairs),
            )
