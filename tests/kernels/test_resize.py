"""Sums of Resizes of NHWC tensors against ONNX Runtime's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session, tensor

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.cpu import runs_here
from ortkit.targets.target import Target

Dim = int | str
LINEAR = 'mode = "linear", coordinate_transformation_mode = '
REPEATED = (
    'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"'
)


def resize(
    shape: tuple[Dim, ...], made: tuple[Dim, ...], attributes: str, others: tuple[Dim, ...] = ()
) -> RegionSignature:
    """A Resize of NHWC; with `others` the sum with a Resize of these and a plain operand."""
    if isinstance(shape[0], str):
        growth = (int(made[axis]) // int(shape[axis]) for axis in (1, 2))
        factors = f"float[4] {{1, 1, {', '.join(map(str, growth))}}}"
        given = '"", s'
    else:
        factors = f"int64[4] {{{made[0]}, {made[3]}, {made[1]}, {made[2]}}}"
        given = '"", "", s'
    lines = [
        f"s = Constant <value = {factors}> ()",
        "t = Transpose <perm = [0, 3, 1, 2]> (x)",
        f"r = Resize <{attributes}> (t, {given})",
    ]
    specs = [tensor("x", *shape)]
    if others:
        lines += [
            "t1 = Transpose <perm = [0, 3, 1, 2]> (x1)",
            f"r1 = Resize <{attributes}> (t1, {given})",
            "t2 = Transpose <perm = [0, 3, 1, 2]> (x2)",
            "a = Add (r1, r)", "b = Add (a, t2)", "c = Relu (b)",
        ]  # fmt: skip
        specs += [tensor("x1", *others), tensor("x2", *made)]
    lines += [f"y = Transpose <perm = [0, 2, 3, 1]> ({'c' if others else 'r'})"]
    names = ", ".join(spec.name for spec in specs)
    text = f'<opset_import: ["" : 20]> f ({names}) => (y) {{ {"  ".join(lines)} }}'
    return RegionSignature("resize", text, tuple(specs), (tensor("y", *made),))


CASES = {
    "half pixel": resize((2, 5, 3, 37), (2, 10, 12, 37), f'{LINEAR}"half_pixel"'),
    "uneven": resize((1, 5, 7, 16), (1, 13, 9, 16), f'{LINEAR}"pytorch_half_pixel"'),
    "smaller": resize((1, 9, 8, 20), (1, 4, 3, 20), f'{LINEAR}"half_pixel"'),
    "to one": resize((1, 9, 8, 20), (1, 1, 1, 20), f'{LINEAR}"pytorch_half_pixel"'),
    "from one": resize((1, 1, 1, 17), (1, 3, 2, 17), f'{LINEAR}"half_pixel"'),
    "corners": resize((1, 4, 6, 18), (1, 9, 11, 18), f'{LINEAR}"align_corners"'),
    "asymmetric": resize((1, 4, 6, 5), (1, 8, 18, 5), f'{LINEAR}"asymmetric"'),
    "repeated": resize(("n", 3, 4, 33), ("n", 9, 4, 33), REPEATED),
    "named": resize(("n", 4, 3, 40), ("n", 8, 9, 40), f'{LINEAR}"half_pixel"'),
    "sum": resize((3, 4, 3, 40), (3, 8, 9, 40), f'{LINEAR}"half_pixel"', (3, 2, 9, 40)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("case", "level"),
    [*((case, "native") for case in CASES), ("sum", "x86-64-v3"), ("named", "x86-64-v2")],
)
def test_results(case: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    signature = CASES[case]
    target = Target("cpu", level)
    if not runs_here(level):
        pytest.skip(f"this machine does not run {level}")
    made = build_library([signature], target, tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    rng = np.random.default_rng(0)
    shapes = [[3 if isinstance(n, str) else n for n in spec.shape] for spec in signature.inputs]
    feeds = {
        spec.name: rng.standard_normal(shape, np.float32)
        for spec, shape in zip(signature.inputs, shapes, strict=True)
    }
    feeds["x"][0, -1, -1, 0] = np.inf  # the last pixel is mixed with no other
    model = fused_model(signature)
    (want,) = session(model).run(None, feeds)
    for threads in (1, 3):
        (got,) = session(model, made.library.path, threads).run(None, feeds)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (resize((1, "h", 4, 8), (1, 8, 8, 8), REPEATED), "images whose size is not known"),
        (resize((1, 3, 4, 8), (1, 8, 8, 8), REPEATED), "repeats pixels unevenly"),
        (resize((1, 4, 4, 8), (1, 8, 8, 8), 'mode = "cubic"'), "of mode cubic"),
        (
            resize((1, 4, 4, 8), (1, 8, 8, 8), f'{LINEAR}"tf_crop_and_resize"'),
            "lie tf_crop_and_resize",
        ),
    ],
)
def test_what_has_no_such_kernel_is_refused(signature: RegionSignature, reason: str) -> None:
    found = refusal(signature, Target(), "tvm")
    assert found is not None
    assert reason in found.reason
