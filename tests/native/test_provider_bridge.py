"""The bridge's headers against what Python has of them, and the library against its promises."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ortkit.provider import bridge, native
from tests.native.elf import read_library

PROVIDER = Path(__file__).parents[2] / "custom_ops" / "native" / "provider"
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
#: Class of bridge.py -> struct of the headers, where it is not "Ortkit" and the class's name.
STRUCTS = {
    item.__name__: f"Ortkit{item.__name__}"
    for item in vars(bridge).values()
    if isinstance(item, type) and issubclass(item, ctypes.Structure)
}


def test_structures_are_laid_out_as_the_compiler_does(tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("no C compiler")
    lines = ['#include "bridge.h"', "#include <stdio.h>", "int main(void) {"]
    want: dict[str, int] = {}
    for name, struct in STRUCTS.items():
        one = getattr(bridge, name)
        want[struct] = ctypes.sizeof(one)
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        for field, *_ in one._fields_:
            want[f"{struct}.{field}"] = getattr(one, field).offset
            lines.append(f'printf("{struct}.{field} %zu\\n", offsetof({struct}, {field}));')
    (tmp_path / "probe.c").write_text("\n".join([*lines, "return 0; }"]))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{PROVIDER}"]
    command = [*COMPILER.split(), *flags, "probe.c", "-o", "probe"]
    subprocess.run(command, cwd=tmp_path, check=True)
    said = subprocess.run([tmp_path / "probe"], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in map(str.split, said.splitlines())}
    assert found == want


def test_every_struct_of_the_headers_is_there() -> None:
    text = "".join((PROVIDER / name).read_text() for name in ("kernel.h", "bridge.h"))
    found = set(re.findall(r"^typedef struct (Ortkit\w+) \{", text, re.M))
    found |= set(re.findall(r"^struct (Ortkit\w+) \{", text, re.M))
    assert found == set(STRUCTS.values())
    version = re.search(r"#define ORTKIT_BRIDGE_VERSION (\d+)", text)
    assert version is not None
    assert int(version[1]) == bridge.BRIDGE_VERSION


def test_exports_are_those_that_the_header_declares() -> None:
    text = (PROVIDER / "bridge.h").read_text()
    declared = set(re.findall(r"^ORTKIT_PROVIDER_API [^;(]*?(ortkit_provider_\w+)\(", text, re.M))
    library = read_library(native.library_path())
    assert set(library.exports) == declared | {"CreateEpFactories", "ReleaseEpFactory"}
    assert {f"ortkit_provider_{name}" for name in native._EXPORTS} == declared


def test_it_needs_neither_python_nor_onnxruntime() -> None:
    library = read_library(native.library_path())
    allowed = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "libm.so.6", "libgcc_s.so.1"}
    allowed |= {"libstdc++.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    assert set(library.needs) <= allowed
    assert library.search_paths == ()
    assert not [name for name in library.imports if name.startswith(("Py", "_Py", "Ort"))]


def test_each_slot_that_the_header_declares_is_used() -> None:
    """Those that are used run in the other tests of providers."""
    header = (PROVIDER / "ep_abi.h").read_text()
    sources = "".join(path.read_text() for path in PROVIDER.glob("*.cc"))
    slots = re.findall(r"Slot<\d+,[^;]*>\s+(\w+);", header)
    assert len(slots) > 60
    for slot in slots:
        assert re.search(rf"ort::{slot}\(", sources), f"{slot} is not used"


@pytest.fixture(scope="module")
def sha256(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program around the library's own code."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("sha256")
    (folder / "main.cc").write_text(
        '#include "sha256.h"\n#include <cstdio>\n#include <iostream>\n#include <iterator>\n'
        "int main() { std::string all((std::istreambuf_iterator<char>(std::cin)), {});\n"
        "puts(ortkit::provider::Sha256(all.data(), all.size()).c_str()); }\n"
    )
    files = ["main.cc", str(PROVIDER / "sha256.cc"), f"-I{PROVIDER}", "-o", "sha256"]
    subprocess.run([compiler, "-std=c++17", *files], cwd=folder, check=True)
    return folder / "sha256"


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 100_000])
def test_sha256(size: int, sha256: Path) -> None:
    data = bytes(i * 7 % 251 for i in range(size))
    said = subprocess.run([sha256], input=data, capture_output=True, check=True).stdout
    assert said.decode().strip() == hashlib.sha256(data).hexdigest()
