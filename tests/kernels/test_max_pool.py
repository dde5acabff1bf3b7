"""Poolings of NHWC tensors against ONNX Runtime's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fused_model import fused_model, session, tensor
from test_bf16_product import run

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target

Dim = int | str


def pool(
    shape: tuple[Dim, ...], result: tuple[Dim, ...], attributes: str, *, narrow: bool = False
) -> RegionSignature:
    """A MaxPool of NHWC."""
    lines = [
        "xw = Cast <to = 1> (x)" if narrow else "xw = Identity (x)",
        "t = Transpose <perm = [0, 3, 1, 2]> (xw)",
        f"p = MaxPool <{attributes}> (t)",
        f"{'n' if narrow else 'y'} = Transpose <perm = [0, 2, 3, 1]> (p)",
        *(["y = Cast <to = 16> (n)"] if narrow else []),
    ]
    if not narrow:
        lines = [line.replace("(xw)", "(x)") for line in lines[1:]]
    dtype = "bfloat16" if narrow else "float32"
    specs = [
        replace(tensor(name, *sizes), dtype=dtype) for name, sizes in (("x", shape), ("y", result))
    ]
    text = f'<opset_import: ["" : 20]> f (x) => (y) {{ {"  ".join(lines)} }}'
    return RegionSignature("max_pool", text, (specs[0],), (specs[1],))


CASES = {
    "resnet": pool(
        (2, 13, 14, 64), (2, 7, 7, 64),
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]", narrow=True,
    ),
    "odd": pool((1, 7, 9, 37), (1, 6, 8, 37), "kernel_shape = [2, 2]"),
    "named": pool(
        ("n", 9, 5, 21), ("n", 4, 3, 21),
        "kernel_shape = [3, 1], strides = [2, 2], dilations = [1, 1]", narrow=True,
    ),
    "dilated": pool(
        (1, 9, 9, 16), (1, 7, 3, 16),
        "kernel_shape = [3, 3], dilations = [2, 3], pads = [1, 0, 1, 0]",
    ),
    "rounded up": pool(
        (1, 8, 8, 8), (1, 4, 4, 8),
        "kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", narrow=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results(case: str, tmp_path: Path, cache: KernelCache) -> None:
    signature = CASES[case]
    made = build_library([signature], Target(), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    shape = [3 if isinstance(size, str) else size for size in signature.inputs[0].shape]
    # All negative: what lies outside must not count as 0.
    x = -np.abs(np.random.default_rng(0).standard_normal(shape, np.float32))
    x[0, 1, 1, 0] = -np.inf
    if signature.inputs[0].dtype == "bfloat16":
        x = x.astype(ml_dtypes.bfloat16)
    model = fused_model(signature)
    (want,) = run(session(model), {"x": x})
    for threads in (1, 3):
        (got,) = run(session(model, made.library.path, threads), {"x": x})
        np.testing.assert_array_equal(got, want)


def test_what_has_no_such_kernel_is_refused() -> None:
    signature = pool((1, "h", 9, 16), (1, "h", 8, 16), "kernel_shape = [1, 2]")
    found = refusal(signature, Target(), "tvm")
    assert found is not None
    assert "a pooling of images whose size is not known" in found.reason
    signature = pool((1, 9, 9, 16), (1, 8, 8, 16), 'kernel_shape = [2, 2], auto_pad = "VALID"')
    found = refusal(signature, Target(), "tvm")
    assert found is not None
    assert "kernel and pads stated" in found.reason
