"""Linking without a C compiler: the package ziglang, with nothing else to be found."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ortkit.kernels.link.linker import find_linker
from tests.kernels.fused_model import bias_gelu, fused_model, random_input, session
from tests.native.elf import read_library

ROOT = Path(__file__).parents[2]
SIGNATURE = bias_gelu("n", 24)
# Run where neither PATH nor CC names a compiler.
BUILD = """
import sys
from pathlib import Path
from tests.kernels.fused_model import bias_gelu
from ortkit.kernels.build.library import build_library
from ortkit.targets.target import Target
from ortkit.kernels.link.linker import find_linker
assert "zig" in find_linker()[0], find_linker()
for place in sys.argv[2:]:
    build_library([bias_gelu("n", 24)], Target("cpu", sys.argv[1]), Path(place))
"""

pytestmark = pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")


def build(folder: Path, level: str = "native") -> tuple[Path, Path]:
    """Link one library twice, in a process that sees no compiler and has no home."""
    places = (folder / "one.so", folder / "two.so")
    surroundings = {
        "PATH": "/nowhere",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "ORTKIT_CACHE": str(folder / "cache"),
    }
    command = [sys.executable, "-c", BUILD, level, *map(str, places)]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return places


def test_a_library_that_zig_linked_is_like_any_other(tmp_path: Path) -> None:
    one, two = build(tmp_path)
    assert one.read_bytes() == two.read_bytes()
    found = read_library(one)
    assert found.exports == ("RegisterCustomOps", "ortkit_kernel_manifest")
    assert set(found.needs) <= {"libc.so.6", "libm.so.6"}
    feeds = {spec.name: random_input(spec, {"n": 300}) for spec in SIGNATURE.inputs}
    model = fused_model(SIGNATURE)
    (with_library,) = session(model, one, threads=2).run(None, feeds)
    (without,) = session(model).run(None, feeds)
    np.testing.assert_allclose(with_library, without, rtol=0, atol=2**-23 * 16)


def test_what_zig_compiles_is_for_the_lowest_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapters around the kernels; zig's own default is the very processor it runs on."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    source = tmp_path / "adapter.c"
    source.write_text("#ifdef __SSE3__\n#error built for this machine\n#endif\nint x;\n")
    command = [*find_linker(), "-c", str(source), "-o", str(tmp_path / "adapter.o")]
    subprocess.run(command, check=True)
