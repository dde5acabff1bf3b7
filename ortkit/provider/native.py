"""The native half of execution providers, by ctypes: custom_ops/native/provider/bridge.h.

ONNX Runtime loads `libortkit_provider.so` and calls it; it calls the functions of a `Provider`
(ortkit/provider/bridge.py) that was defined here.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib import import_module
from pathlib import Path

from ortkit.errors import MissingDependencyError, UserError
from ortkit.provider.bridge import BRIDGE_VERSION, Entries, Kernel, Provider

PROVIDER_LIBRARY = "libortkit_provider.so"
_EXPORTS: dict[str, tuple[object, tuple[object, ...]]] = {
    "version": (c_uint32, ()),
    "new_error": (c_void_p, ()),
    "free_error": (None, (c_void_p,)),
    "error": (None, (c_void_p, c_char_p)),
    "error_text": (c_char_p, (c_void_p,)),
    "define": (c_int32, (c_char_p, POINTER(Provider), c_void_p)),
    "undefine": (None, (c_char_p,)),
    "close": (c_int32, (c_int32,)),
    "add_group": (c_int32, (c_void_p, POINTER(c_void_p), c_size_t, c_int32, c_void_p)),
    "add_single": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "has_kernel": (c_int32, (c_void_p, c_void_p, c_void_p)),
    "set_kernel": (c_int32, (c_void_p, c_int32, POINTER(Kernel), c_void_p)),
    "open_library": (c_void_p, (c_char_p, c_void_p)),
    "load_library": (c_void_p, (c_char_p, c_size_t, c_void_p)),
    "close_library": (None, (c_void_p,)),
    "library_op": (c_char_p, (c_void_p, c_int32)),
    "validate": (c_int32, (c_char_p, c_char_p, POINTER(c_int32), c_void_p)),
    "recorded_count": (c_int64, ()),
    "recorded": (c_int32, (c_int64, c_void_p)),
    "log": (None, (c_void_p, c_void_p, c_int32, c_char_p)),
    "now": (c_int64, ()),
    "is_profiling": (c_int32, (c_void_p,)),
    "add_event": (None, (c_void_p, c_char_p, c_int64, c_int64, POINTER(Entries))),
    "memory_statistics": (c_int32, (c_char_p, c_int32, POINTER(c_int64), c_int32)),
}


def library_path() -> Path:
    """Return where the library lies.

    Raises:
        MissingDependencyError: ortkit is not installed.
    """
    for folder in import_module("ortkit.custom_ops").__path__:
        path = Path(folder) / PROVIDER_LIBRARY
        if path.is_file():
            return path
    raise MissingDependencyError(
        f"ortkit's {PROVIDER_LIBRARY} is not there",
        fix="run `pip install .` in ortkit's folder, or `pip install -e .` to work on it",
    )


@cache
def library() -> ctypes.CDLL:
    """Load the library, once. Its functions are `ortkit_provider_*`.

    Raises:
        MissingDependencyError: ortkit is not installed, or in another version.
    """
    path = library_path()
    loaded = ctypes.CDLL(str(path))
    for name, (result, arguments) in _EXPORTS.items():
        function = getattr(loaded, f"ortkit_provider_{name}")
        function.restype = result
        function.argtypes = arguments
    found = loaded.ortkit_provider_version()
    if found != BRIDGE_VERSION:
        raise MissingDependencyError(
            f"its version is {found}, expected {BRIDGE_VERSION}",
            where=str(path),
            fix="install ortkit again",
        )
    atexit.register(loaded.ortkit_provider_close, 5000)
    return loaded


class NativeError:
    """Room for a message of the library; a context manager."""

    def __init__(self) -> None:
        self.handle: int | None = library().ortkit_provider_new_error()

    def __enter__(self) -> NativeError:
        return self

    def __exit__(self, *_: object) -> None:
        library().ortkit_provider_free_error(self.handle)
        self.handle = None

    @property
    def text(self) -> str:
        """The last message."""
        return error_text(self.handle)


def error_text(error: int | None) -> str:
    """Return the message that an `OrtkitError*` holds."""
    return (library().ortkit_provider_error_text(error) or b"").decode("utf-8", "replace")


def set_error(error: int | None, message: str) -> None:
    """Give a message to an `OrtkitError*`; within a callback, which then returns a code."""
    library().ortkit_provider_error(error, message.encode("utf-8", "replace"))


def entries(values: Mapping[str, str]) -> Entries:
    """Return `values` as the library takes them; the arrays live as long as the result."""
    keys = (c_char_p * len(values))(*(key.encode() for key in values))
    texts = (c_char_p * len(values))(*(value.encode() for value in values.values()))
    return Entries(
        len(values), ctypes.cast(keys, POINTER(c_char_p)), ctypes.cast(texts, POINTER(c_char_p))
    )


def define(registration: str, provider: Provider) -> None:
    """Define what the library is when ONNX Runtime registers it under this name.

    The definition stays, so whatever its functions need must live as long as the process.

    Raises:
        UserError: The definition is not complete.
    """
    with NativeError() as error:
        code = library().ortkit_provider_define(
            registration.encode(), ctypes.byref(provider), error.handle
        )
        if code != 0:
            raise UserError(error.text, where=f"provider {registration}")


def undefine(registration: str) -> None:
    """Let later registrations of this name fail."""
    library().ortkit_provider_undefine(registration.encode())


def add_group(
    groups: int, nodes: Sequence[int], *, drop_constant_initializers: bool, error: int
) -> None:
    """Claim nodes, as one, within `get_capability`.

    Args:
        groups: What the callback was handed.
        nodes: Addresses of OrtNodes.
        drop_constant_initializers: The kernel does not get them as inputs.
        error: What the callback was handed.

    Raises:
        UserError: ONNX Runtime refused them.
    """
    array = (c_void_p * len(nodes))(*nodes)
    code = library().ortkit_provider_add_group(
        groups, array, len(nodes), int(drop_constant_initializers), error
    )
    if code != 0:
        raise UserError(error_text(error))


def add_single(groups: int, node: int, error: int) -> None:
    """Claim one node for the kernel entry that fits it, within `get_capability`.

    Raises:
        UserError: ONNX Runtime refused it.
    """
    if library().ortkit_provider_add_single(groups, node, error) != 0:
        raise UserError(error_text(error))


def has_kernel(groups: int, node: int, error: int) -> bool:
    """Return whether a kernel entry fits a node, within `get_capability`.

    Raises:
        UserError: ONNX Runtime cannot tell.
    """
    answer = library().ortkit_provider_has_kernel(groups, node, error)
    if answer < 0:
        raise UserError(error_text(error))
    return bool(answer)


def set_kernel(kernels: int, index: int, kernel: Kernel, error: int) -> None:
    """Say what a group (within `compile`) or a node (within `create`, index 0) runs.

    Raises:
        UserError: The kernel is not complete, or does not fit the node.
    """
    kernel.size = ctypes.sizeof(Kernel)
    code = library().ortkit_provider_set_kernel(kernels, index, ctypes.byref(kernel), error)
    if code != 0:
        raise UserError(error_text(error))


class KernelLibrary:
    """A loaded kernel library. Kernels keep it open; this object only needs to live until then."""

    def __init__(self, source: Path | bytes) -> None:
        """Load it from a file or from its bytes.

        Raises:
            UserError: It is none, or does not run here.
        """
        with NativeError() as error:
            if isinstance(source, bytes):
                handle = library().ortkit_provider_load_library(source, len(source), error.handle)
            else:
                handle = library().ortkit_provider_open_library(str(source).encode(), error.handle)
            if not handle:
                where = "" if isinstance(source, bytes) else str(source)
                raise UserError(error.text, where=where)
        self.handle: int = handle

    @property
    def ops(self) -> tuple[str, ...]:
        """The op types that it has kernels for."""
        return tuple(self._read_ops())

    def _read_ops(self) -> Iterable[str]:
        index = 0
        while name := library().ortkit_provider_library_op(self.handle, index):
            yield name.decode()
            index += 1

    def close(self) -> None:
        """Let go of it; kernels made from it stay."""
        if self.handle:
            library().ortkit_provider_close_library(self.handle)
            self.handle = 0

    def __enter__(self) -> KernelLibrary:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def recorded_errors(first: int = 0) -> tuple[str, ...]:
    """Return errors that ONNX Runtime only logged, the oldest first.

    Args:
        first: Leave out as many of all that ever were.
    """
    with NativeError() as error:
        return tuple(
            error.text
            for index in range(first, library().ortkit_provider_recorded_count())
            if library().ortkit_provider_recorded(index, error.handle) == 0
        )


def memory_statistics(registration: str, device: int = 0) -> dict[str, int]:
    """Return a device's allocator counters, in bytes and counts; empty if it has no memory."""
    names = ("InUse", "MaxInUse", "NumAllocs", "TotalAllocated", "MaxAllocSize", "NumFrees")
    counters = (c_int64 * len(names))()
    count = library().ortkit_provider_memory_statistics(
        registration.encode(), device, counters, len(names)
    )
    return dict(zip(names[:count], counters, strict=False))
