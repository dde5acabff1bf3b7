"""Pieces of C source: lists, texts and sizes as custom_ops/native/manifest.h has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortkit.kernels.sizes import Extent


def c_extents(name: str, extents: Sequence[Extent], symbols: Sequence[str]) -> list[str]:
    """Return lines with the array of sizes `name` and, before it, for each that of its symbols."""
    lines = []
    for index, extent in enumerate(extents):
        numbers = c_list(symbols.index(symbol) for symbol in extent.symbols)
        lines.append(f"static const int32_t {name}_{index}[] = {{{numbers}}};")
    entries = ", ".join(c_extent(name, index, extent) for index, extent in enumerate(extents))
    lines.append(f"static const OrtkitExtent {name}[] = {{{entries or '{0, 0, 0}'}}};")
    return lines


def c_extent(name: str, index: int, extent: Extent) -> str:
    """Return one size of what `c_extents` wrote under `name`."""
    return f"{{{extent.factor}, {len(extent.symbols)}, {name}_{index}}}"


def c_list(items: Iterable[object]) -> str:
    """Return the items with commas between them."""
    # C has no empty arrays; an unused 0 stands for one.
    return ", ".join(map(str, items)) or "0"


def c_text(text: str) -> str:
    """Return a C string literal; names come from models and may hold anything."""
    safe = set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,:;/+*()[]<>=")
    return (
        '"'
        + "".join(chr(byte) if byte in safe else f"\\{byte:03o}" for byte in text.encode())
        + '"'
    )
