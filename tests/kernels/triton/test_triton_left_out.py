"""Architectures that a kernel does not compile for: left out, said, and run by something else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import onnx.parser
import pytest
from fused_model import bias_gelu

import ortkit
from ortkit.cli.main import run
from ortkit.errors import KernelError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.compiler import Job
from ortkit.kernels.build.library import build_library
from ortkit.kernels.build.record import kernel_from, record_of
from ortkit.kernels.cuda import SHARED_BYTES, CudaKernel, LeftOut
from ortkit.kernels.triton import build
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.triton.build import Compiled, compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import StepSource
from ortkit.refusal import Refused
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

FAILED = "Triton failed on a kernel for sm_{}: out of registers"
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8, 768] x, float[768] w) => (float[8, 768] y) {
  a = Add(x, w)  b = Sigmoid(a)  c = Mul(a, b)  d = Tanh(c)  y = Sub(d, x)
}"""


@pytest.fixture
def fail_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the assembler fail on steps for some architectures."""

    def change(*architectures: int, variant: int | None = None) -> None:
        calls: list[int] = []

        def compile_or_fail(step: StepSource, architecture: int, folder: Path) -> Compiled:
            calls.append(architecture)
            place = calls.count(architecture) - 1
            if architecture in architectures and variant in (None, place):
                raise KernelError(FAILED.format(architecture), where=step.entry)
            return compile_step(step, architecture, folder)

        monkeypatch.setattr(build, "compile_step", compile_or_fail)

    return change


def compiled(folder: Path, level: str) -> CudaKernel:
    return TritonBackend().compile(bias_gelu("n", 48), Target("cuda", level), folder)


def architectures_of(kernel: CudaKernel) -> set[tuple[int, bool]]:
    """What there is for every step of every variant."""
    steps = {
        (i, j) for i, variant in enumerate(kernel.variants) for j in range(len(variant.steps))
    }
    found = {(image.architecture, image.is_ptx) for image in kernel.images}
    for kind in found:
        has = {(item.variant, item.step) for item in kernel.images if _kind(item) == kind}
        assert has == steps, kind
    return found


def _kind(image: build.Image) -> tuple[int, bool]:
    return image.architecture, image.is_ptx


@pytest.mark.parametrize("variant", [None, 1])
def test_one_that_fails_is_left_out_of_all_variants(
    variant: int | None, fail_on: Callable[..., None], tmp_path: Path
) -> None:
    fail_on(90, variant=variant)
    kernel = compiled(tmp_path, "sm_86,sm_90,sm_100")
    assert len(kernel.variants) == 3
    assert architectures_of(kernel) == {(86, False), (100, False), (80, True)}
    assert kernel.left_out == (LeftOut(90, FAILED.format(90)),)
    assert kernel.left_out_lines() == (f"{FAILED.format(90)}; a GPU of sm_90 runs the PTX",)


def test_a_variant_that_it_can_do_without_is_said_too(
    fail_on: Callable[..., None], tmp_path: Path
) -> None:
    fail_on(90, variant=0)
    sources = sources_of(bias_gelu("n", 48))
    assert not isinstance(sources, Refused)
    first, *others = sources
    found = build.write_images((replace(first, is_optional=True), *others), (86, 90), tmp_path)
    assert found.left_out == (LeftOut(90, FAILED.format(90), is_variant=True),)
    assert {item.variant for item in found.images if item.architecture == 90} == {1, 2}
    target = Target("cuda", "sm_86,sm_90")
    kernel = CudaKernel("k", "triton", target, found.variants, found.images, 0.0, found.left_out)
    assert kernel.left_out_lines() == (
        f"{FAILED.format(90)}; a GPU of sm_90 runs a slower variant",
    )
    files = {image.path.name: image.path for image in found.images}
    assert kernel_from(record_of(kernel), "k", "triton", target, files, 0.0) == kernel


def test_what_runs_instead(fail_on: Callable[..., None], tmp_path: Path) -> None:
    fail_on(86)
    kernel = compiled(tmp_path, "sm_80,sm_86")
    assert kernel.runs_on(86) == kernel.runs_on(89) == "the code for sm_80"
    assert kernel.runs_on(90) == "the PTX"
    large = [
        replace(
            variant, steps=tuple(replace(step, shared_bytes=100 << 10) for step in variant.steps)
        )
        for variant in kernel.variants
    ]
    assert replace(kernel, variants=tuple(large)).runs_on(86) == "the function body"
    assert replace(kernel, variants=tuple(large)).runs_on(90) == "the PTX"
    one_fits = (*large[1:], kernel.variants[-1])
    assert replace(kernel, variants=one_fits).runs_on(86) == "the code for sm_80"


def test_without_ptx(fail_on: Callable[..., None], tmp_path: Path) -> None:
    fail_on(80)
    asked, not_asked = (compiled(tmp_path, level) for level in ("sm_80,sm_90", "sm_90"))
    without = "without PTX, GPUs that have no code of their own run the function body"
    assert architectures_of(asked) == architectures_of(not_asked) == {(90, False)}
    body = "a GPU of sm_80 runs the function body"
    assert asked.left_out_lines() == (f"{FAILED.format(80)}; {body}; {without}",)
    assert not_asked.left_out_lines() == (f"{FAILED.format(80)}; {without}",)


def test_what_compiles_for_none_is_refused(fail_on: Callable[..., None], tmp_path: Path) -> None:
    fail_on(80, 90)
    with pytest.raises(KernelError, match=re.escape(FAILED.format(80))):
        compiled(tmp_path, "sm_90")


def test_a_block_with_more_shared_memory_than_a_gpu_has(tmp_path: Path) -> None:
    """A tile of 128 KiB that Triton turns: there is room on sm_90, and not on sm_86."""
    sources = sources_of(bias_gelu(8, 48))
    assert not isinstance(sources, Refused)
    (step,) = sources[0].steps
    text = f"""import triton
import triton.language as tl

@triton.jit
def {step.entry}(x0, x1, y0):
    row, column = tl.arange(0, 128)[:, None], tl.arange(0, 256)[None, :]
    turned = tl.load(x1 + column * 128 + row)
    tl.store(y0 + row * 256 + column, tl.load(x0 + row * 256 + column) + turned)
"""
    large = replace(step, text=text, warps=16)
    assert SHARED_BYTES[86] < compile_step(large, 90, tmp_path).shared_bytes <= SHARED_BYTES[90]
    with pytest.raises(KernelError, match=r"it needs \d+ bytes of shared memory, a block has 101"):
        compile_step(large, 86, tmp_path)


def in_process(
    jobs: Sequence[Job], count: Callable[[int, int], None]
) -> list[CudaKernel | Refused]:
    """What the compiling processes do, where a test can let it fail."""
    count(0, len(jobs))
    return [TritonBackend().compile(job.signature, job.target, job.folder) for job in jobs]


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ortkit.kernels.build.library.compile_all", in_process)
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("in_one_process")
def test_it_is_known_when_the_kernel_comes_from_the_cache(
    fail_on: Callable[..., None], tmp_path: Path
) -> None:
    fail_on(90)
    cache = KernelCache(tmp_path / "kernels")
    target, path = Target("cuda", "sm_86,sm_90"), tmp_path / "a.so"
    made = build_library([bias_gelu(8, 48)], target, path, "triton", cache)
    again = build_library([bias_gelu(8, 48)], target, tmp_path / "b.so", "triton", cache)
    assert (made.compiled, again.compiled) == (1, 0)
    for one in (made, again):
        (kernel,) = one.kernels
        assert isinstance(kernel, CudaKernel)
        assert kernel.left_out == (LeftOut(90, FAILED.format(90)),)
    assert path.read_bytes() == (tmp_path / "b.so").read_bytes()


@pytest.mark.usefixtures("in_one_process")
def test_reports_and_the_command_say_it(
    fail_on: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_on(90)
    model = onnx.parser.parse_model(MODEL)
    options = ortkit.OptimizeOptions(target="cuda", arch="sm_90", verify=False)
    made = ortkit.optimize(model, options)
    (region,) = [item for item in made.report.regions if item.emitted_as]
    line = f"{FAILED.format(90)}; a GPU of sm_90 runs the PTX"
    assert region.left_out == (line,)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    command = ["optimize", str(path), "--target", "cuda", "--arch", "sm_90", "--no-verify"]
    assert run(command) == 0
    assert f"warning: the kernel of {region.kind} (places: 1): {line}" in capsys.readouterr().err
    assert run([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["left_out"] for one in document["regions"] if one["emitted_as"]] == [[line]]
