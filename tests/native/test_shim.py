"""The shim's tests in C++, against a made-up runtime: plain, and under three sanitizers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.native.objects import COMPILER, HERE, NATIVE, SHIM, compiled, linked

SANITIZERS = {
    "none": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}


def build(folder: Path, flags: list[str], *sources: Path, without: str = "") -> Path:
    """Compile the shim as custom_ops/CMakeLists.txt does, and `sources` with it.

    `without` is a file of the shim's that the sources stand for.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    probe = [COMPILER, *flags, "-x", "c++", "-", "-o", str(folder / "probe")]
    if flags and subprocess.run(probe, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip(f"the compiler does not take {' '.join(flags)}")
    shim = [path for path in sorted(NATIVE.glob("*.cc")) if path.stem != without]
    objects = [compiled(path, [*flags, *SHIM]) for path in shim]
    objects += [compiled(path, flags) for path in sources]
    return linked(folder / "program", [*objects, "-pthread", "-ldl"], flags)


def names_of_tests() -> list[str]:
    table = (HERE / "shim_test.cc").read_text().rpartition("} const tests[] = {")[2]
    return re.findall(r'\{"([^"]+)", \w+\}', table)


@pytest.mark.parametrize(
    "sanitizer",
    ["none", *(pytest.param(name, marks=pytest.mark.slow) for name in ("address", "thread"))],
)
def test_the_shim_does_what_it_should(sanitizer: str, tmp_path: Path) -> None:
    sources = (HERE / "fake_runtime.cc", HERE / "shim_test.cc")
    program = build(tmp_path, SANITIZERS[sanitizer], *sources)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert names_of_tests()
    assert done.stdout.splitlines() == [f"{name} ok" for name in names_of_tests()], said
    assert done.stderr == ""


# What a sanitizer must see, or a run without findings says nothing.
MISTAKES = {
    "address": (
        "heap-buffer-overflow",
        "char* p = new char[8]; char* volatile q = p + 8; *q = 1;",
    ),
    "thread": (
        "data race",
        "int n = 0; std::thread t([&] { ++n; }); ++n; t.join(); if (n > 9) return 1;",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", MISTAKES)
def test_the_sanitizer_sees_a_mistake(sanitizer: str, tmp_path: Path) -> None:
    finding, code = MISTAKES[sanitizer]
    source = tmp_path / "mistake.cc"
    source.write_text(f"#include <thread>\nint main() {{ {code} return 0; }}\n")
    command = [str(COMPILER), "-std=c++17", "-O0", "-pthread", *SANITIZERS[sanitizer]]
    program = tmp_path / "mistake"
    if COMPILER is None or subprocess.run([*command, source, "-o", program]).returncode != 0:
        pytest.skip(f"no compiler with the {sanitizer} sanitizer")
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=60)
    assert finding in done.stderr
