"""Depthwise convolutions in float32 whose ends lie in bfloat16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conv_regions import depthwise, feeds, pointwise, stem
from fused_model import fused_model, session
from test_bf16_product import run

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.cpu import native_level
from ortkit.targets.target import Target

CASES = {
    "3x3": depthwise((2, 14, 13), 48, 3, 1, (1, 1, 1, 1)),
    "odd": depthwise((1, 9, 17), 37, 5, 2, (1, 2, 2, 1), "relu6"),
    "named": depthwise(("n", "h", 12), 21, 3, 1, (1, 1, 1, 1), ""),
}
ENDS = {"both": (True, True), "source": (True, False), "result": (False, True)}
SIZES = {"n": 3, "h": 5}


def narrowed(signature: RegionSignature, source: bool, result: bool) -> RegionSignature:
    """The same region with its ends in bfloat16."""
    body, inputs, outputs = signature.body, signature.inputs, signature.outputs
    if source:
        body = body.replace("(x)", "(xw)").replace("{", "{ xw = Cast <to = 1> (x) ", 1)
        inputs = tuple(
            replace(spec, dtype="bfloat16") if spec.name == "x" else spec for spec in inputs
        )
    if result:
        last = "y = Transpose <perm = [0, 2, 3, 1]> "
        body = body.replace(f"{last}(a)", f"ar = Cast <to = 16> (a)  {last}(ar)")
        outputs = (replace(outputs[0], dtype="bfloat16"), *outputs[1:])
    return replace(signature, body=body, inputs=inputs, outputs=outputs)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", dict.fromkeys(["native", native_level().removesuffix("-amx")]))
@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_their_bodies(
    case: str, ends: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    signature = narrowed(CASES[case], *ENDS[ends])
    made = build_library([signature], Target("cpu", level), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    given = feeds(CASES[case], SIZES)
    if signature.inputs[0].dtype == "bfloat16":
        given["x"] = given["x"].astype(ml_dtypes.bfloat16)
    model = fused_model(signature)
    (want,) = run(session(model), given)
    step = 2.0**-7 if signature.outputs[0].dtype == "bfloat16" else 1e-5
    for threads in (1, 3):
        (got,) = run(session(model, made.library.path, threads), given)
        np.testing.assert_allclose(got, want, rtol=step, atol=1e-5)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (
            narrowed(depthwise((1, 9, 9), 16, 3, 1, (1, 1, 1, 1), means=True), False, True),
            "with means, and a result in bfloat16",
        ),
        (narrowed(pointwise((1, 9, 9), (16, 16)), True, False), "with an end in bfloat16"),
        (
            narrowed(stem((1, 3, 9, 9), 16, 3, 1, (1, 1, 1, 1)), False, True),
            "with an end in bfloat16",
        ),
    ],
)
def test_what_has_no_such_kernel_is_refused(signature: RegionSignature, reason: str) -> None:
    found = refusal(signature, Target("cpu", "native"), "tvm")
    assert found is not None
    assert reason in found.reason
