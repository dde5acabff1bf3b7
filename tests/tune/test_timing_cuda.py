"""Kernels for GPUs: what is launched at given sizes, and the process that times it.

The driver here is one of C that runs images, which are libraries then, on the host.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tuned_regions import region

from ortkit.errors import KernelError, UserError
from ortkit.kernels.cuda import (
    ONE_BLOCK,
    Argument,
    CeilDiv,
    Condition,
    CudaKernel,
    Image,
    Step,
    Variant,
)
from ortkit.kernels.sizes import Extent
from ortkit.targets.target import Target
from ortkit.tune import timing_cuda
from ortkit.tune.cases import TuneCase
from ortkit.tune.options import TuneOptions
from ortkit.tune.runners import runner_for
from ortkit.tune.timing_cuda import Gpu, launches_of, run, this_gpu

DOUBLE = region("Y = Add (X, X)", {"X": ("n", 20)}, {"Y": ("n", 20)})
CASE = TuneCase(DOUBLE, (5,))
POINTS = Extent(20, ("s0",))
KERNEL = """#include <stdint.h>
void scaled(void **given, unsigned blocks) {
  const float *x = *(float **)given[0];
  float *y = *(float **)given[1], *scratch = *(float **)given[2];
  const int32_t n = *(int32_t *)given[3];
  if (*(int64_t *)given[4] || *(int64_t *)given[5]) return;  /* Triton's own, null */
  scratch[0] = BY;
  for (int32_t i = 0; i < n && i < 64 * (int32_t)blocks; ++i) y[i] = scratch[0] * x[i];
}
"""


def built(folder: Path, by: str) -> Path:
    """An "image": a file with the path of a library, whose kernel multiplies."""
    source, library, image = (folder / f"k{by}.{end}" for end in ("c", "so", "cubin"))
    source.write_text(KERNEL.replace("BY", by))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    image.write_bytes(str(library).encode() + b"\0")
    return image


def kernel(image: Path, conditions: tuple[Condition, ...] = ()) -> CudaKernel:
    arguments = (
        Argument("tensor", 0), Argument("tensor", 1), Argument("scratch", 0),
        Argument("size32", extent=POINTS),
    )  # fmt: skip
    grid = (CeilDiv(POINTS, 64), ONE_BLOCK, ONE_BLOCK)
    variant = Variant(conditions, True, (Step("scaled", grid, 32, 0, arguments),), (Extent(4),))
    target = Target("cuda", "sm_90")
    return CudaKernel("key", "triton", target, (variant,), (Image(90, False, 0, 0, image),), 0.0)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).with_name("fake_cuda.c")
    folder = tmp_path / "driver"
    folder.mkdir()
    command = ["cc", "-shared", "-fPIC", "-w", "-o", folder / "libcuda.so.1", source, "-ldl"]
    subprocess.run(command, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    this_gpu.cache_clear()
    yield
    this_gpu.cache_clear()


@pytest.mark.usefixtures("driver")
def test_the_gpu_is_known_by_its_driver() -> None:
    assert this_gpu() == Gpu("Fake GPU", 90)
    assert this_gpu().level == "sm_90"


@pytest.mark.usefixtures("driver")
def test_kernels_are_timed_in_turns(tmp_path: Path) -> None:
    kernels = [kernel(built(tmp_path, by)) for by in ("2", "3", "2.00001f")]
    found = run(kernels, CASE, 4)
    assert found.problems == ("", "it computes something else than the default", "")
    assert [len(each) for each in found.times] == [4, 0, 4]
    assert all(time > 0 for each in found.times for time in each)


@pytest.mark.usefixtures("driver")
def test_an_image_that_does_not_load_costs_itself_only(tmp_path: Path) -> None:
    bad = tmp_path / "bad.cubin"
    bad.write_bytes(b"/nowhere\0")
    found = run([kernel(built(tmp_path, "2")), kernel(bad)], CASE, 2)
    assert found.problems[0] == ""
    assert "cuModuleLoadData failed: CUDA_ERROR_INVALID_IMAGE" in found.problems[1]
    with pytest.raises(KernelError, match="cuModuleLoadData failed"):
        run([kernel(bad)], CASE, 2)


def test_the_first_variant_that_fits_is_launched() -> None:
    """As the shim chooses; its grid and arguments at these sizes."""
    first = kernel(Path("a"))
    small = replace(first.variants[0], conditions=(Condition(Extent(1, ("s0",)), at_most=4),))
    other = replace(first.variants[0], conditions=(Condition(Extent(1, ("s0",)), 16),))
    images = tuple(Image(90, False, number, 0, Path(f"{number}")) for number in range(3))
    both = replace(first, variants=(small, other, first.variants[0]), images=images)
    (step,), scratch = launches_of(both, CASE, 90)
    assert (step.image, step.grid, step.threads) == (Path("2"), (2, 1, 1), 32)
    assert step.arguments[-1] == ("size32", 100)
    assert scratch == [4]
    assert launches_of(both, TuneCase(DOUBLE, (3,)), 90)[0][0].image == Path("0")
    assert launches_of(both, TuneCase(DOUBLE, (32,)), 90)[0][0].image == Path("1")
    with pytest.raises(KernelError, match="no variant"):
        launches_of(replace(both, variants=(small,)), CASE, 90)


def test_code_of_its_own_goes_before_ptx() -> None:
    first = kernel(Path("a"))
    images = (
        Image(80, False, 0, 0, Path("sm_80")), Image(80, True, 0, 0, Path("ptx")),
        Image(90, False, 0, 0, Path("sm_90")), Image(100, False, 0, 0, Path("sm_100")),
    )  # fmt: skip
    several = replace(first, images=images)
    ran = {
        item: launches_of(several, CASE, item)[0][0].image.name for item in (80, 86, 89, 90, 120)
    }
    assert ran == {80: "sm_80", 86: "sm_80", 89: "sm_80", 90: "sm_90", 120: "ptx"}


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    this_gpu.cache_clear()
    options = TuneOptions(target="cuda")
    with pytest.raises(UserError, match="no GPU can") as caught, runner_for(options):
        pass
    assert "\n" not in str(caught.value)
    assert timing_cuda.this_gpu.cache_info().currsize == 0
