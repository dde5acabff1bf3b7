"""Hand-written kernels compiled for the GPUs that none of the other tests compile them for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import grouped_attention
import packed_attention
import pytest
import test_triton_batched
import test_triton_convolutions
import test_triton_fp8
import test_triton_gemm
import test_triton_joined
import test_triton_nbits
import test_triton_products
import triton_attention
from test_triton_attention import stack_bytes

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import StepSource
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

#: Bytes of the stack that masks of attention take at most, by registers of their own.
MOST_STACK = 64
#: The call at the end of an entry point.
CALLED = re.compile(r"    (\w+)\([^\n]*\)\n$")


def signatures() -> Iterator[RegionSignature]:
    """Yield regions that all templates have kernels for."""
    for module in (
        test_triton_products, test_triton_gemm, test_triton_joined, test_triton_batched,
        test_triton_fp8, test_triton_nbits, triton_attention,
    ):  # fmt: skip
        yield from (case.signature() for case in module.CASES.values())
    yield from map(packed_attention.signature_of, packed_attention.CASES.values())
    yield from (form.signature() for form in grouped_attention.FORMS.values())
    for build, channels, _ in test_triton_convolutions.NETS.values():
        net = test_triton_convolutions.Net()
        proto = net.model((2, channels, 64, 64), [build(net, "x")])
        yield from (item for _, item in test_triton_convolutions.signatures_of(proto))


def functions() -> dict[str, tuple[StepSource, tuple[int, ...] | None]]:
    """Return a launch of each function that is not for Hopper alone, and its architectures."""
    found: dict[str, tuple[StepSource, tuple[int, ...] | None]] = {}
    for signature in signatures():
        sources = sources_of(signature)
        if isinstance(sources, Refused):
            continue
        for source in sources:
            for step in source.steps:
                called = CALLED.search(step.text)
                if called is not None and source.architectures != (90,):
                    found.setdefault(called[1], (step, source.architectures))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 89, 100, 120])
def test_each_function_compiles(architecture: int, tmp_path: Path) -> None:
    tried = {}
    for name, (step, architectures) in functions().items():
        if architectures is not None and architecture not in architectures:
            continue
        made = compile_step(step, architecture, tmp_path)
        tried[name] = stack_bytes(made.cubin, tmp_path), made.shared_bytes
    assert len(tried) >= 15
    assert {name: stack for name, (stack, _) in tried.items() if stack > MOST_STACK} == {}
    assert {
        name: shared for name, (_, shared) in tried.items() if shared > SHARED_BYTES[architecture]
    } == {}
