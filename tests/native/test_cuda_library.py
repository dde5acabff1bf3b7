"""Libraries with kernels for CUDA: what is in them, and that they load where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.cuda import ONE_BLOCK, Argument, CeilDiv, Condition, CudaKernel, Image, Variant
from ortkit.kernels.link import manifest_cuda
from ortkit.kernels.link.linker import KernelLibrary, find_shim, link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent
from ortkit.targets.target import Target
from tests.kernels.fused_model import fused_model, random_input
from tests.native.cuda_kernels import add_rows, add_step, cuda_kernel
from tests.native.elf import read_library
from tests.native.objects import COMPILER
from tests.native.test_cuda_shim import fake_driver

ROOT = Path(__file__).parents[2]
CUDA = Target("cuda", "sm_80,sm_90")
# The two last are empty since glibc 2.34.
C_LIBRARY = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0"}
# Adds 100 to what it should, so that a result says where it came from.
ON_CPU = """
#include <stdint.h>
int32_t probe(const float* x, const float* w, float* y, int64_t a, int64_t b, int64_t begin,
              int64_t end) {
  (void)a;
  for (int64_t i = begin * b; i < end * b; ++i) y[i] = x[i] + w[i % b] + 100;
  return 0;
}
"""


def cpu_kernel(folder: Path, signature: RegionSignature) -> Kernel:
    if COMPILER is None:
        pytest.skip("no C compiler")
    (folder / "probe.c").write_text(ON_CPU)
    command = ["cc", "-std=c11", "-O1", "-fPIC", "-c", "probe.c", "-o", "probe.o"]
    subprocess.run(command, cwd=folder, check=True)
    launch = Launch((Extent(1, ("s0",)),), Extent(1, ("s1",)), 100)
    target = Target().resolved()
    return Kernel(signature.key, "tests", target, folder / "probe.o", "probe", launch, 0.0)


def for_cuda(folder: Path, name: str = "x.so", **changes: int) -> KernelLibrary:
    signature = add_rows()
    kernel = cuda_kernel(folder / "images", signature, **changes)
    return link_library([kernel], [signature], folder / name, kernel.target)


def for_both(folder: Path) -> KernelLibrary:
    signature = add_rows()
    kernels = [cuda_kernel(folder / "images", signature), cpu_kernel(folder, signature)]
    return link_library(kernels, [signature] * 2, folder / "both.so", Target())


def added(library: Path, target: str | None = None) -> float:
    """Run the model with the library; returns what it added to what it should."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if target is not None:
        options.add_session_config_entry("ortkit.fused.target", target)
    options.register_custom_ops_library(str(library))
    model = fused_model(add_rows())
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {spec.name: random_input(spec, {"a": 6, "b": 9}) for spec in add_rows().inputs}
    (found,) = session.run(None, feeds)
    excess = found - feeds["X"] - feeds["W"]
    np.testing.assert_allclose(excess, excess.flat[0], atol=1e-4)
    return round(float(excess.flat[0]))


# ---- loading
def test_a_library_for_cuda_only_leaves_the_cpu_to_the_function(tmp_path: Path) -> None:
    path = for_cuda(tmp_path).path
    assert added(path) == 0
    assert added(path, "cpu") == 0


def test_a_library_for_both_runs_its_kernel_on_the_cpu(tmp_path: Path) -> None:
    path = for_both(tmp_path).path
    assert added(path) == 100
    assert added(path, "cpu") == 100


def test_a_session_for_cuda_gets_no_kernel_that_is_for_the_cpu_only(tmp_path: Path) -> None:
    signature = add_rows()
    path = tmp_path / "cpu.so"
    link_library([cpu_kernel(tmp_path, signature)], [signature], path, Target())
    assert added(path) == 100
    assert added(path, "cuda") == 0


def test_another_target_is_refused(tmp_path: Path) -> None:
    path = for_cuda(tmp_path).path
    with pytest.raises(Exception, match=r"ortkit\.fused\.target is 'gpu', expected cpu or cuda"):
        added(path, "gpu")


# Run with a made-up driver, and stock onnxruntime, which has no provider for CUDA.
WITH_DRIVER = """
import sys
from pathlib import Path
from tests.native.test_cuda_library import added
for target in sys.argv[2:]:
    try:
        print(added(Path(sys.argv[1]), None if target == "none" else target))
    except Exception as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this runtime has CUDA"
)
def test_a_driver_alone_is_not_taken_for_a_session_with_cuda(tmp_path: Path) -> None:
    path = for_both(tmp_path).path
    surroundings = {
        **os.environ,
        "LD_LIBRARY_PATH": str(fake_driver(tmp_path / "driver", [], "-DFAKE_DEVICE=90")),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, "-c", WITH_DRIVER, str(path), "none", "cpu", "cuda"]
    done = subprocess.run(
        command, env=surroundings, capture_output=True, text=True, check=True, timeout=60
    )
    # Told to, it brings both kernels, and the session has a provider for one.
    assert done.stdout.split() == ["100", "100", "100"]
    alone = for_cuda(tmp_path).path
    done = subprocess.run(
        [*command[:3], str(alone), *command[4:]], env=surroundings, capture_output=True, text=True,
        check=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == ["0", "0"]
    assert "Could not find an implementation for add_rows" in lines[2]


# ---- what is in it
def test_equal_kernels_give_equal_libraries(tmp_path: Path) -> None:
    one, two = for_cuda(tmp_path), for_cuda(tmp_path, "y.so")
    assert one.path.read_bytes() == two.path.read_bytes()
    assert str(tmp_path).encode() not in one.path.read_bytes()
    assert one.ops == (add_rows().op_type,)


def test_what_a_library_needs(tmp_path: Path) -> None:
    cuda, both = (read_library(item(tmp_path).path) for item in (for_cuda, for_both))
    signature = add_rows()
    kernel = cpu_kernel(tmp_path, signature)
    plain = link_library([kernel], [signature], tmp_path / "cpu.so", Target())
    for library in (cuda, both):
        assert library.exports == ("RegisterCustomOps", "ortkit_kernel_manifest")
        assert set(library.needs) <= C_LIBRARY
        assert "dlopen" in library.imports
    assert "dlopen" not in read_library(plain.path).imports
    assert b"libcuda" not in plain.path.read_bytes()
    assert b"libcuda" in (tmp_path / "both.so").read_bytes()


def test_equal_images_are_there_once(tmp_path: Path) -> None:
    signature = add_rows()
    twice = tuple(Variant((), item, (add_step(), add_step())) for item in (True, False))
    kernel = cuda_kernel(tmp_path / "images", signature, twice, padding=10_000)
    assert len(kernel.images) == 12
    path = link_library([kernel], [signature], tmp_path / "x.so", CUDA).path
    content = path.read_bytes()
    assert content.count(b"cubin 80 add\0") == content.count(b"ptx 80 add\0") == 1
    assert content.count(b"cubin 90 add\0") == 1


def test_an_image_that_changes_changes_the_library(tmp_path: Path) -> None:
    one, two = for_cuda(tmp_path), for_cuda(tmp_path, "y.so", padding=1)
    assert one.sha256 != two.sha256


@pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")
def test_zig_links_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps what it compiles by the source's text, which therefore names the images' bytes."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    for padding in (0, 1):
        path = for_cuda(tmp_path, f"{padding}.so", padding=padding).path
        assert set(read_library(path).needs) <= C_LIBRARY
        assert path.read_bytes().count(b"cubin 90 add\0" + b"\1" * padding) == 1
        assert added(path) == 0
    assert (tmp_path / "0.so").read_bytes() != (tmp_path / "1.so").read_bytes()


# ---- what the generator refuses
def test_python_and_the_header_state_the_same_bounds() -> None:
    header = find_shim()[1].read_text()
    for name in ("VARIANTS", "STEPS", "ARGUMENTS", "SCRATCH"):
        (stated,) = re.findall(rf"#define ORTKIT_MAX_CUDA_{name} (\d+)", header)
        assert getattr(manifest_cuda, f"_MAX_{name}") == int(stated)
    kinds = re.findall(r"(ORTKIT_ARGUMENT_\w+) = (\d)", header)
    assert [name for name, _ in kinds] == list(manifest_cuda._KINDS.values())


STEP = add_step()


def changed(**changes: object) -> tuple[Variant, ...]:
    return (Variant((), False, (replace(STEP, **changes),)),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variants", "problem"),
    [
        ((Variant((), False, (STEP,)),) * 17, "has 17 variants"),
        ((Variant((), False, ()),), "has too many steps or scratch blocks, or no step"),
        ((Variant((), False, (STEP,) * 9),), "has too many steps"),
        ((Variant((), False, (STEP,), (ONE,) * 9),), "has too many steps or scratch"),
        ((Variant((Condition(ONE, 0),), False, (STEP,)),), "has a condition that no size"),
        (changed(entry="no name"), "has the entry 'no name'"),
        (changed(threads=0), "has 0 threads"),
        (changed(threads=1025), "has 1025 threads"),
        (changed(shared_bytes=-1), "128 threads, -1 bytes"),
        (changed(grid=(CeilDiv(ONE, 0), ONE_BLOCK, ONE_BLOCK)), "divides its blocks by less"),
        (changed(arguments=(Argument("null"),) * 127), "has 127 arguments"),
        (changed(arguments=(Argument("tensor", 3),)), "reads tensor 3, which is not there"),
        (changed(arguments=(Argument("tensor", -1),)), "reads tensor -1, which is not there"),
        (changed(arguments=(Argument("scratch", 0),)), "reads scratch 0, which is not there"),
        (changed(arguments=(Argument("size32"),)), "has an argument that is no size"),
    ],
)
def test_a_kernel_that_cannot_be(
    variants: tuple[Variant, ...], problem: str, tmp_path: Path
) -> None:
    refuses(lambda kernel: replace(kernel, variants=variants), problem, tmp_path, variants)


def test_a_kernel_without_code(tmp_path: Path) -> None:
    refuses(lambda kernel: replace(kernel, variants=()), "has 0 variants", tmp_path)
    variants = (Variant((), False, (STEP,)),)
    problem = "step 0 of variant 0 .* has no image"
    refuses(lambda kernel: replace(kernel, variants=variants, images=()), problem, tmp_path)


def refuses(
    change: Callable[[CudaKernel], CudaKernel],
    problem: str,
    folder: Path,
    variants: tuple[Variant, ...] = (),
) -> None:
    signature = add_rows()
    images = tuple(
        Image(80, True, number, place, folder / "image.ptx")
        for number, variant in enumerate(variants or (Variant((), False, (STEP,)),))
        for place in range(len(variant.steps))
    )
    (folder / "image.ptx").write_bytes(b"ptx 80 add\0")
    kernel = CudaKernel(signature.key, "tests", CUDA, (), images, 0.0)
    with pytest.raises(InternalError, match=problem):
        link_library([change(kernel)], [signature], folder / "x.so", CUDA)
    assert not (folder / "x.so").exists()


def test_an_image_that_is_gone(tmp_path: Path) -> None:
    signature = add_rows()
    kernel = cuda_kernel(tmp_path / "images", signature)
    (tmp_path / "images" / "add_90.cubin").unlink()
    with pytest.raises(KernelError, match=r"add_90.cubin cannot be read: No such file"):
        link_library([kernel], [signature], tmp_path / "x.so", CUDA)


def test_kernels_for_the_cpu_are_for_the_level_of_the_library(tmp_path: Path) -> None:
    """A library for CUDA only promises to run on every processor."""
    signature = add_rows()
    kernel = cpu_kernel(tmp_path, signature)
    if kernel.target.level in ("x86-64", "aarch64"):
        pytest.skip("this machine has the lowest level")
    with pytest.raises(
        InternalError, match=f"a kernel for {kernel.target.level} in a library for"
    ):
        link_library([kernel], [signature], tmp_path / "x.so", CUDA)
