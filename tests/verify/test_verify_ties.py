"""Integers that are rounded from floats: off by a step only where the float is near the border."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model

import ortkit
from ortkit.verify.verifier import Verifier

#: One value lies on the border, the others lie away from it.
ROUNDED = {
    "Round": "r = Round(v) y = Cast <to = 2> (r)",
    "Floor": "r = Floor(v) y = Cast <to = 7> (r)",
    "Ceil": "r = Ceil(v) c = Clip(r, zero, top) y = Cast <to = 3> (c)",
    "truncated": "y = Cast <to = 6> (v)",
    "quantized": "y = QuantizeLinear(v, step, from)",
}
BORDERS = {"Round": 2.5, "Floor": 3.0, "Ceil": 4.0, "truncated": 3.0, "quantized": 2.5}
TYPES = {"Round": "uint8", "Floor": "int64", "Ceil": "int8", "truncated": "int32",
         "quantized": "uint8"}  # fmt: skip
#: Between the rounding and the output; {r} is what is rounded.
LAYOUTS = (
    ("", "float[2, 3, 4]"),
    ("t = Transpose <perm = [1, 2, 0]> (z) u = Unsqueeze(t, zeroth)", "float[1, 3, 4, 2]"),
    ("s = Reshape(z, shape) u = Transpose (s)", "float[6, 4]"),
)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ROUNDED)
def test_a_step_is_no_error_where_it_is_a_matter_of_one_rounding(
    kind: str, layout: tuple[str, str], tmp_path: Path
) -> None:
    steps, declared = layout
    body = ROUNDED[kind].replace("y = ", "z = ")
    shape = declared.replace("float", TYPES[kind])
    text = f"""g (float[2, 3, 4] x) => ({shape} y) {{
      v = Add(x, w) {body} {steps} y = Identity({"u" if steps else "z"})
    }}"""
    border = BORDERS[kind]
    x = np.random.default_rng(0).integers(0, 99, (2, 3, 4)).astype(np.float32) + np.float32(0.25)
    x[1, 2, 3] = 0
    np.savez(tmp_path / "in.npz", x=x)

    def made(towards: float, elsewhere: float = 0.0) -> ir.Model:
        w = np.full((2, 3, 4), elsewhere, np.float32)
        w[1, 2, 3] = np.nextafter(np.float32(border), np.float32(towards))
        weights = {
            "w": w, "zero": np.array(0, np.float32), "top": np.array(100, np.float32),
            "step": np.array(1, np.float32), "from": np.array(3, np.uint8),
            "zeroth": np.array([0]), "shape": np.array([4, 6]),
        }  # fmt: skip
        return model(text, weights)

    with Verifier(made(0.0), inputs=tmp_path / "in.npz") as verifier:
        found = verifier.check(made(9.0))
        assert (found.verdict, found.near_ties) == ("yes", 2), found.reason
        wrong = verifier.check(made(0.0, elsewhere=1.0))
    assert wrong.verdict == "no"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["y = ArgMax <axis = 1, keepdims = 0> (h)",
                                 "r = Round(p) y = Cast <to = 7> (r)"])  # fmt: skip
def test_half_precision_keeps_models_whose_outputs_are_integers(end: str) -> None:
    """Segmentation and images: their classes and pixels may be others where it is a tie."""
    random = np.random.default_rng(0)
    rank = "[n, 16, 16]" if "ArgMax" in end else "[n, 16, 16, 16]"
    built = model(
        f"""g (float[n, 16, 16, 16] x) => (int64{rank} y) {{
          a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a) h = Conv(b, v) p = Mul(h, scale) {end}
        }}""",
        {
            "w": (random.standard_normal((16, 16, 3, 3)) / 12).astype(np.float32),
            "v": (random.standard_normal((16, 16, 1, 1)) / 4).astype(np.float32),
            "scale": np.array(60, np.float32),
        },
    )
    options = ortkit.OptimizeOptions(
        target="cuda", precision="fp16", kernels="off", shapes={"n": 2}
    )
    report = ortkit.optimize(built, options).report
    assert report.verification is not None
    assert (report.verification.verdict, report.rolled_back) == ("yes", ())
    assert report.verification.near_ties
    assert any("lower-precision" in hit.id for hit in report.hits)


IMAGE = """g ({kind}[1, 8, 16, 16] x) => (uint8[1, 8, 16, 16] y) {{
  a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a) h = Conv(b, v) p = Mul(h, scale)
  s = Add(p, shift) r = Round(s) c = Clip(r, zero, top) y = Cast <to = 2> (c)
}}"""


def image(kind: type, *, levels: float = 0.0, computed: type | None = None) -> ir.Model:
    """A net whose result is an image; `levels` brighter, with weights as `computed` has them."""
    random = np.random.default_rng(0)
    weights = {
        "w": random.standard_normal((8, 8, 3, 3)) / 12,
        "v": random.standard_normal((8, 8, 1, 1)) / 2,
        "scale": np.array(40.0), "shift": np.array(128 + levels), "zero": np.array(0.0),
        "top": np.array(255.0),
    }  # fmt: skip
    given = {name: array.astype(computed or kind).astype(kind) for name, array in weights.items()}
    return model(IMAGE.format(kind="float16" if kind is np.float16 else "float"), given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_an_image_in_half_precision_is_no_brighter(kind: type) -> None:
    """Four roundings of float16 are one of 255 levels."""
    computed_in = "float16" if kind is np.float32 else ""
    with Verifier(image(kind)) as verifier:
        as_is = verifier.check(image(kind, computed=np.float16), computed_in=computed_in)
        assert as_is.verdict == "yes", as_is.reason
        for levels in (1.0, -2.0, 4.0):
            found = verifier.check(image(kind, levels=levels), computed_in=computed_in)
            assert found.verdict == "no", levels
