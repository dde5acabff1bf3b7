"""Streams and notifications of providers, by the numbers that native code knows them by."""

from __future__ import annotations

#: The process has one table: a kernel gets a number, whichever provider's it is.
OBJECTS: dict[int, object] = {}
