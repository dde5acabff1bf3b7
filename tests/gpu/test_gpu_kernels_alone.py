"""Each kernel for CUDA alone on a GPU, beside its body: right ones pass, wrong ones do not."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest

import models
from ortkit import OptimizeOptions, optimize
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.build import write_images
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.verify.kernels.check import KernelRow, check_kernels

sys.path.insert(0, str(Path(__file__).parents[1] / "verify"))

from faulty_kernels import calling
from mutants.interpreted import regions

pytest.importorskip("triton")
REGIONS = {region.name: region.signature for region in regions()}
#: What is wrong: a pattern of Triton's code, and what takes its place.
FAULTS = {
    "the first place of an output": (r"tl\.store\(y0 \+ ", "tl.store(y0 + 1 + "),
    "another sign": (r"(tl\.store\(y0 \+ [^,]*, )", r"\1-1.0 * "),
    "a mask off by one": (r"(row|column|point) < (n?\d+)", r"\1 < \2 - 1"),
    "no mask": (r"(tl\.store\(.*), mask=.*\)", r"\1)"),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["bert", "vit", "llama", "mobilenet_v2", "resnet50"])
def test_all_kernels_of_a_model_pass(name: str, precision: str, tmp_path: Path) -> None:
    options = OptimizeOptions(target="cuda", precision=precision, verify=False, check_load=False)  # type: ignore[arg-type]
    optimize(models.build(name), options).save(tmp_path / "m.onnx")
    report = check_kernels(ir.load(tmp_path / "m.onnx"), tmp_path / "m.ops.so")
    assert report.rows
    wrong = [f"{row.op_type}: {row.reason}" for row in report.rows if row.verdict != "passed"]
    assert not wrong, "\n".join(wrong)
    assert not any(row.is_interpreted for row in report.rows)
    assert report.gaps == ()


def judged(
    signature: RegionSignature, sources: Sequence[VariantSource], folder: Path
) -> KernelRow:
    """Compile sources, link them and judge the library's kernel."""
    target = Target("cuda", "native").resolved()
    made = write_images(sources, (90,), folder)
    kernel = CudaKernel(
        signature.key, "triton", target, made.variants, made.images, 0.0, made.left_out
    )
    path = folder / "m.ops.so"
    link_library([kernel], [signature], path, target)
    (row,) = check_kernels(calling(signature), path).rows
    return row


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_passes(name: str, tmp_path: Path) -> None:
    found = sources_of(REGIONS[name])
    assert not isinstance(found, Refused)
    row = judged(REGIONS[name], found, tmp_path)
    assert (row.verdict, row.reason) == ("passed", "")
    assert row.runs == 3 * row.cases


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", REGIONS)
def test_a_fault_is_found(name: str, fault: str, tmp_path: Path) -> None:
    pattern, text = FAULTS[fault]
    found = sources_of(REGIONS[name])
    assert not isinstance(found, Refused)
    wrong = [
        replace(
            item,
            steps=tuple(replace(s, text=re.sub(pattern, text, s.text)) for s in item.steps),
        )
        for item in found
    ]
    if any(one == other for one, other in zip(wrong, found, strict=True)):
        pytest.skip("the code has no such place in every variant")
    assert judged(REGIONS[name], wrong, tmp_path).verdict == "failed"
