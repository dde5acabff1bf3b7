"""The kernel text of every region that the tests of kernels make, by the region's key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from ortkit.errors import OrtkitError
from ortkit.kernels.backend import KernelBackend
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.target import Target
from scripts.baselines.listing import FOLDER, conclude, digest

FILE = FOLDER / "emitted_text.txt"
#: Tests of kernels for regions; others test the cache, the compiler and single operators.
TESTS = tuple(
    f"tests/kernels/test_{name}.py"
    for name in (
        "attention_bf16", "attention_kernel", "bf16_convolution", "bf16_depthwise", "bf16_product",
        "convolutions", "grouped_attention", "int8_convolution", "int8_images", "int8_product",
        "loops", "max_pool", "nbits_product", "one_axis", "product", "region_kernels", "resize",
        "streams",
    )
) + tuple(
    f"tests/kernels/triton/test_triton_{name}.py"
    for name in (
        "attention", "attention_hopper", "batched", "convolutions", "fp8", "gemm", "joined",
        "nbits", "packed_attention", "products", "regions",
    )
)  # fmt: skip
TARGETS: tuple[tuple[KernelBackend, Target], ...] = (
    (TvmBackend(), Target("cpu", "x86-64-v3")),
    (TvmBackend(), Target("cpu", "x86-64-v4-amx")),
    (TritonBackend(), Target("cuda", "sm_80,sm_90")),
)


def recorded(arguments: list[str]) -> dict[str, RegionSignature]:
    """Run tests up to where they compile or start a process; return their signatures by key."""
    made: list[RegionSignature] = []

    def record(signature: RegionSignature) -> None:
        checked(signature)
        made.append(signature)

    def leave_out(*_: object, **__: object) -> None:
        pytest.skip("compiles")

    checked = RegionSignature.__post_init__
    with (
        patch.object(RegionSignature, "__post_init__", record),
        patch("ortkit.kernels.build.library.compile_all", leave_out),
        patch("ortkit.kernels.tvm.build.write_object", leave_out),
        patch("ortkit.kernels.triton.build.write_images", leave_out),
        patch.object(subprocess.Popen, "__init__", leave_out),
    ):
        pytest.main(
            [*arguments, "--every-case", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        )
    found: dict[str, RegionSignature] = {}
    for signature in made:
        try:
            found[signature.key] = signature
        except OrtkitError:
            continue  # a test of what is refused
    return found


def lines_of(signature: RegionSignature) -> Iterator[str]:
    """Yield a line for each target that has a kernel for a region."""
    for backend, target in TARGETS:
        try:
            if backend.accepts(signature, target) is not None:
                continue
            text = backend.source(signature, target)
        except OrtkitError as error:
            yield f"{target.level} {type(error).__name__}"
            continue
        size = sum(len(each.splitlines()) for each in text.values())
        content = digest(*(part for item in sorted(text.items()) for part in item))
        yield f"{target.level} {size} lines {content}"


def main(arguments: list[str]) -> int:
    """List all regions of the tests, or of those named; compare with the baseline or write it."""
    is_update = "--update" in arguments
    tests = [each for each in arguments if each != "--update"]
    signatures = recorded(tests or [*TESTS])
    entries = {}
    for key in sorted(signatures):
        signature = signatures[key]
        if lines := tuple(lines_of(signature)):
            entries[f"{signature.name}_{key}"] = lines
    # Regions that tests make up at random are not the same in every run.
    return conclude(FILE, entries, is_update=is_update, is_whole=False, is_partial=bool(tests))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
