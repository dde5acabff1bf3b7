"""What a shared library says of itself: a reader of ELF files that needs no binutils.

Structures: System V ABI, "Object Files" and "Dynamic Linking"; 64 bits, little-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<QQ")
_DYNSYM, _DYNAMIC_SECTION = 11, 6
_NEEDED, _RPATH, _RUNPATH = 1, 15, 29
_WEAK = 2


@dataclass(frozen=True)
class SharedLibrary:
    """The dynamic part of a library.

    Args:
        exports: Names that others may link to, sorted.
        imports: Names that must be found elsewhere, sorted; weak ones need not be.
        needs: The libraries that are loaded with it.
        search_paths: RPATH and RUNPATH.
    """

    exports: tuple[str, ...]
    imports: tuple[str, ...]
    needs: tuple[str, ...]
    search_paths: tuple[str, ...]


@dataclass(frozen=True)
class _Section:
    kind: int
    content: bytes
    link: int


def read_library(path: Path) -> SharedLibrary:
    """Read a shared library.

    Raises:
        ValueError: It is no 64-bit little-endian ELF file.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is no 64-bit little-endian ELF file")
    sections = _sections(data)
    exports, imports, needs, search_paths = set(), set(), [], []
    for section in sections:
        if section.kind == _DYNSYM:
            for offset, info, _, index, _, _ in _SYMBOL.iter_unpack(section.content):
                name = _text(sections[section.link].content, offset)
                if name and index:
                    exports.add(name)
                elif name and info >> 4 != _WEAK:
                    imports.add(name)
        if section.kind == _DYNAMIC_SECTION:
            for tag, value in _DYNAMIC.iter_unpack(section.content):
                if tag == _NEEDED:
                    needs.append(_text(sections[section.link].content, value))
                elif tag in (_RPATH, _RUNPATH):
                    search_paths.append(_text(sections[section.link].content, value))
    return SharedLibrary(
        tuple(sorted(exports)), tuple(sorted(imports)), tuple(needs), tuple(search_paths)
    )


def _sections(data: bytes) -> list[_Section]:
    fields = _HEADER.unpack_from(data)
    start, size, count = fields[6], fields[11], fields[12]
    found = []
    for index in range(count):
        _, kind, _, _, offset, length, link, *_ = _SECTION.unpack_from(data, start + index * size)
        content = b"" if kind == 8 else data[offset : offset + length]  # 8: takes no room (bss)
        found.append(_Section(kind, content, link))
    return found


def _text(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
