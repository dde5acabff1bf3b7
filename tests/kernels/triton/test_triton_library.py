"""Libraries of Triton kernels: compiled side by side, kept, linked; harmless on CPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fused_model import bias_gelu, fused_model, random_input, session
from test_region_kernels import CASES, signature_of

from ortkit.errors import UserError
from ortkit.kernels.build.cache import KernelCache, Slot
from ortkit.kernels.build.compiler import seconds_for
from ortkit.kernels.build.library import build_library
from ortkit.kernels.build.record import kernel_from, record_of
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

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
TARGET = Target("cuda", "sm_90")


def test_kernels_are_compiled_once_and_linked(tmp_path: Path) -> None:
    signatures = [bias_gelu(8, 48), signature_of("rms norm", CASES["rms norm"])]
    cache = KernelCache(tmp_path / "cache")
    fresh = build_library(signatures, TARGET, tmp_path / "a.so", "triton", cache)
    assert (fresh.compiled, fresh.refused, fresh.note) == (2, (), "")
    again = build_library(signatures[::-1], TARGET, tmp_path / "b.so", "triton", cache)
    assert again.compiled == 0
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()
    assert {entry.level for entry in cache.entries()} == {"sm_90"}
    assert fresh.library is not None
    signature = signatures[0]
    feeds = {spec.name: random_input(spec, {}) for spec in signature.inputs}
    model = fused_model(signature)
    (found,) = session(model, tmp_path / "a.so").run(None, feeds)  # the function's body
    np.testing.assert_array_equal(found, session(model).run(None, feeds)[0])


def test_a_kernel_comes_back_from_the_cache_as_it_was(tmp_path: Path) -> None:
    signature = signature_of("rms norm", CASES["rms norm"])
    cache = KernelCache(tmp_path / "cache")
    made = build_library([signature], TARGET, tmp_path / "a.so", "triton", cache).kernels[0]
    assert isinstance(made, CudaKernel)
    slot = Slot(signature, "triton", _fingerprint(), TARGET)
    found = cache.find(slot, tmp_path)
    assert isinstance(found, CudaKernel)
    assert found.variants == made.variants
    assert len(found.variants) == 3
    pairs = zip(found.images, made.images, strict=True)
    assert all(replace(one, path=other.path) == other for one, other in pairs)
    for image in found.images:
        assert image.path.parent == tmp_path
        assert image.path.read_bytes().startswith(b"//" if image.is_ptx else b"\x7fELF")


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("variants"),
        lambda record: record["variants"][0]["steps"][0]["arguments"][0].update(kind="code"),
        lambda record: record["variants"][0]["steps"][0].update(grid=[]),
        lambda record: record["images"][0].update(path="gone.cubin"),
        lambda record: record["variants"][0]["conditions"].append(None),
    ],
)
def test_a_damaged_record_is_none(damage: object) -> None:
    size = Extent(3, ("s0", "s1"))
    pointer = Argument("tensor", 1)
    step = Step("f", (CeilDiv(size, 8), ONE_BLOCK, ONE_BLOCK), 64, 0, (pointer,))
    condition = Condition(size, at_most=9)
    variants = (Variant((condition,), True, (step, step), (size,)), Variant((), False, (step,)))
    path = Path("made") / "a.cubin"
    image = Image(90, False, 1, 0, path)
    made = CudaKernel("0" * 12, "triton", TARGET, variants, (image,), 0.0)

    def read(record: object) -> object:
        written = json.loads(json.dumps(record))
        return kernel_from(written, made.key, "triton", TARGET, {"a.cubin": path})

    record = json.loads(json.dumps(record_of(made)))
    assert read(record) == made
    assert callable(damage)
    damage(record)
    assert read(record) is None


@pytest.mark.parametrize("level", ["sm_70", "x86-64", "", "sm_90,"])
def test_architectures_that_are_none_are_said_so(level: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no kernels can be built for the GPU architecture"):
        build_library([bias_gelu(8, 48)], Target("cuda", level), tmp_path / "a.so", "triton")


def test_more_architectures_may_take_longer() -> None:
    one, three = (seconds_for(Target("cuda", level)) for level in ("sm_90", "sm_80,sm_90,sm_120"))
    assert three == 2 * one > seconds_for(Target("cpu", "x86-64-v3"))


def _fingerprint() -> str:
    from ortkit.kernels.triton.backend import TritonBackend

    return TritonBackend().fingerprint()
