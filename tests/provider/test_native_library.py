"""Kernels that are ops or functions of a kernel library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.errors import UserError
from ortkit.provider import bridge, native
from ortkit.targets.cpu import machine
from tests.provider.native_library import SIGNATURE, LibraryProvider, build, compiled
from tests.provider.native_providers import (
    TRIPLE,
    floats,
    model,
    placed,
    registered,
    session,
    triple,
)

BOTH = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y)
{ s = Add(a, b)  m = Mul(s, c)  r = Relu(m)  y = Add(r, c) }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("library"))


@pytest.mark.parametrize("is_file", [True, False])
def test_an_op_and_a_function_of_a_library(library: Path, is_file: bool) -> None:
    with registered(LibraryProvider(library if is_file else library.read_bytes())):
        made = session(model(BOTH), LibraryProvider.name)
        assert sorted(placed(made, LibraryProvider.name)) == [["Add"], ["Add", "Mul", "Relu"]]
        for rows in (1, 7, 20_000, 0):
            feeds = floats("abc", rows, 4)
            want = 3 * (triple(feeds) + feeds["c"])
            np.testing.assert_allclose(made.run(None, feeds)[0], want, rtol=1e-6)


def test_two_libraries_at_once(library: Path, tmp_path: Path) -> None:
    """dlopen tells libraries by their paths, and theirs are in memory."""
    others = [build(tmp_path, f"{scale}.so", scale) for scale in (5, 7)]
    feeds = floats("abc", 2, 4)
    for scale, other in zip((5, 7), others, strict=True):
        with registered(LibraryProvider(library, other)):
            made = session(model(BOTH), LibraryProvider.name)
            want = scale * (triple(feeds) + feeds["c"])
            np.testing.assert_allclose(made.run(None, feeds)[0], want, rtol=1e-6)


def test_the_library_may_go_while_a_session_has_it(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(library.read_bytes())
    with registered(LibraryProvider(copy)):
        made = session(model(TRIPLE), LibraryProvider.name)
        copy.write_bytes(b"")
        copy.unlink()
        feeds = floats("abc", 5, 4)
        np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))


def test_inputs_may_come_in_any_order(library: Path) -> None:
    """ONNX Runtime orders a fused node's inputs; names decide which is which."""
    text = TRIPLE.replace("Add(a, b)", "Add(c, a)").replace("Mul(s, c)", "Mul(s, b)")
    with registered(LibraryProvider(library)):
        feeds = floats("abc", 5, 4)
        found = session(model(text), LibraryProvider.name).run(None, feeds)[0]
        want = np.maximum((feeds["c"] + feeds["a"]) * feeds["b"], 0)
        np.testing.assert_array_equal(found, want)


def test_what_the_kernel_was_not_made_for_is_refused_in_a_run(library: Path) -> None:
    text = TRIPLE.replace("float[n, 4] a", "float[m, 4] a")
    with registered(LibraryProvider(library)):
        made = session(model(text), LibraryProvider.name)
        feeds = floats("abc", 1, 4) | floats("c", 5, 4)
        with pytest.raises(Exception, match=f"{SIGNATURE.op_type}: input .* has size"):
            made.run(None, feeds)


def test_a_library_is_loaded_once_and_gone_with_its_last_holder(library: Path) -> None:
    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return len([line for line in lines if "ortkit-kernels" in line and "r-xp" in line])

    content = library.read_bytes()
    before = mapped()
    first, second = native.KernelLibrary(library), native.KernelLibrary(content)
    assert first.handle == second.handle
    assert first.ops == (SIGNATURE.op_type,)
    assert mapped() == before + 1
    first.close()
    first.close()  # no effect
    assert second.ops == (SIGNATURE.op_type,)
    with registered(LibraryProvider(library)):
        made = session(model(TRIPLE), LibraryProvider.name)
        second.close()
        assert mapped() == before + 1
        del made
    assert mapped() == before


@pytest.mark.parametrize("name", ["nothing", "system", "malloc"])
def test_only_functions_of_the_library_itself_are_its(library: Path, name: str) -> None:
    class Wrong(LibraryProvider):
        def make(self, *arguments: object) -> bridge.Kernel:
            kernel = super().make(*arguments)
            kernel.op_type = name.encode()
            return kernel

    with (
        registered(Wrong(library)),
        pytest.raises(Exception, match=f"{Wrong.name}: the kernel library has no {name}"),
    ):
        session(model(TRIPLE), Wrong.name)


def test_an_op_takes_as_many_inputs_as_it_has(library: Path) -> None:
    class Wrong(LibraryProvider):
        def make(self, *arguments: object) -> bridge.Kernel:
            kernel = super().make(*arguments)
            kernel.input_count = 2
            return kernel

    says = "takes 3 inputs and 1 outputs, and the node gives 2 and 1"
    with registered(Wrong(library)), pytest.raises(Exception, match=says):
        session(model(TRIPLE), Wrong.name)


def test_what_is_no_kernel_library(library: Path, tmp_path: Path) -> None:
    cases = {
        b"": "it is empty",
        b"text " * 100: "it is no shared library",
        b"\x7fELF" + bytes(200): "ELF",  # the loader's words
    }
    for content, says in cases.items():
        with pytest.raises(UserError, match=says):
            native.KernelLibrary(content)
    with pytest.raises(UserError, match="No such file"):
        native.KernelLibrary(tmp_path / "none.so")
    with pytest.raises(UserError, match="no file with content"):
        native.KernelLibrary(tmp_path)
    with pytest.raises(UserError, match="it is no kernel library of ortkit"):
        native.KernelLibrary(native.library_path())


MANIFEST = """#include "manifest.h"
static const OrtkitManifest manifest = {VERSION, CPU, "ortkit.fused", 0, 0, 0, 0};
const OrtkitManifest* ortkit_kernel_manifest(void) { return &manifest; }
"""


@pytest.mark.parametrize(
    ("version", "cpu", "says"),
    [
        ("ORTKIT_MANIFEST_VERSION + 1", "ORTKIT_CPU_X86_64", "of ortkit's manifest, and this is"),
        (
            "ORTKIT_MANIFEST_VERSION",
            "ORTKIT_CPU_AARCH64" if machine() == "x86-64" else "ORTKIT_CPU_X86_64",
            "its kernels need a processor of level .*, and this one is .*; build them for it",
        ),
    ],
)
def test_a_library_for_others_is_refused(
    version: str, cpu: str, says: str, tmp_path: Path
) -> None:
    path = compiled(
        tmp_path, MANIFEST.replace("VERSION,", f"{version},").replace("CPU,", f"{cpu},")
    )
    with pytest.raises(UserError, match=says):
        native.KernelLibrary(path)


def test_threads_of_the_session_share_the_work(library: Path) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 4
    with registered(LibraryProvider(library)):
        made = session(model(TRIPLE), LibraryProvider.name, options=options)
        feeds = floats("abc", 200_000, 4)
        np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
