"""Values of Python over a socket, each whole: between a caller and the process of its job."""

from __future__ import annotations

import pickle
import socket
import struct
import time
from typing import Any

_SIZE = struct.Struct("<Q")


class Channel:
    """One end; both ends are ours, so that what comes is trusted."""

    def __init__(self, link: socket.socket) -> None:
        """Take a socket of a stream over."""
        self._link = link

    def send(self, value: object, until: float | None = None) -> None:
        """Send a value; classes and functions go by name.

        Args:
            value: Whatever `pickle` takes.
            until: When to give up, as `time.monotonic` counts; None: never.

        Raises:
            OSError: The other end is closed, or does not take the value in time.
        """
        content = pickle.dumps(value)
        self._link.settimeout(_left(until))
        self._link.sendall(_SIZE.pack(len(content)) + content)

    def receive(self, until: float | None = None) -> Any:
        """Return the next value.

        Raises:
            EOFError: The other end is closed, maybe in the middle of a value.
            TimeoutError: None came in time.
        """
        (size,) = _SIZE.unpack(self._read(_SIZE.size, until))
        return pickle.loads(self._read(size, until))

    def _read(self, size: int, until: float | None) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            self._link.settimeout(_left(until))
            try:
                count = self._link.recv_into(rest)
            except ConnectionResetError:
                count = 0
            if not count:
                raise EOFError("the other end is closed")
            rest = rest[count:]
        return content

    def close(self) -> None:
        """Close this end."""
        self._link.close()


def _left(until: float | None) -> float | None:
    if until is None:
        return None
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
