"""Products with a norm behind on CUDA, interpreted, against their function bodies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, random_input, session
from interpreter import Interpreter
from test_triton_compile import assert_fits

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused


@dataclass(frozen=True)
class Case:
    """A region by its body.

    Args:
        body: Of x of rows, w [depth, columns], b, g and h of the columns, r of the result's shape.
        inputs: Their letters.
        outputs: Of the result's shape, too.
        rows: Leading dims of x.
        depth: Of the product.
        columns: Of the result.
    """

    body: str
    inputs: str
    outputs: str
    rows: tuple[int | str, ...] = (1, 19)
    depth: int = 456
    columns: int = 72

    def signature(self) -> RegionSignature:
        """Return the region."""
        shapes: dict[str, tuple[int | str, ...]] = {
            "x": (*self.rows, self.depth),
            "w": (self.depth, self.columns),
            **dict.fromkeys("bgh", (self.columns,)),
            **dict.fromkeys("rys", (*self.rows, self.columns)),
        }
        specs, results = (
            tuple(TensorSpec(name, "float16", shapes[name]) for name in names)
            for names in (self.inputs, self.outputs)
        )
        text = (
            f'<opset_import: ["" : 23]> product_norm ({", ".join(self.inputs)}) => '
            f"({', '.join(self.outputs)}) {{ {self.body} }}"
        )
        return RegionSignature("product_norm", text, specs, results)


SUM = "u = MatMul (x, w)  s = Add (u, r)  "
LAYER = Case(f"{SUM} y = LayerNormalization<axis = -1> (s, g, h)", "xwrgh", "y")
BIAS = "u = MatMul (x, w)  t = Add (u, b)  s = Add (r, t)  "
CASES = {
    "a layer's norm": LAYER,
    "few rows": replace(LAYER, rows=(5, 1)),
    "one part": replace(LAYER, depth=72),
    "with its sum": Case(
        f"{BIAS} y = LayerNormalization<axis = -1> (s, g, h)", "xwbrgh", "sy", (2, 35), 1000
    ),
    "with its sum behind": Case(
        f"{BIAS} y = RMSNormalization<axis = -1, epsilon = 0.01> (s, g)", "xwbrg", "ys", (70,), 904
    ),
    "no residual": Case(
        "t = Gemm (x, w, b)  s = Gelu (t)  y = RMSNormalization (s, g)", "xwbg", "y", (4,)
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_regions_compute_what_their_bodies_do(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = [(random_input(spec, {}) / 4).astype(np.float16) for spec in signature.inputs]
    names = [spec.name for spec in signature.inputs]
    wanted = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for number, source in enumerate(sources):
        found = interpreter.run(signature, feeds, number, shift=0 if source.is_aligned else 2)
        for one, other in zip(found, wanted, strict=True):
            largest = max(np.abs(other.astype(np.float64)).max(), 1)
            error = np.abs(one.astype(np.float64) - other).max()
            assert error <= 6 * 2**-11 * largest, f"variant {number}: {error} of {largest}"


REFUSED = {
    "any number of rows": replace(LAYER, rows=("n", 3)),
    "a computed matrix": replace(LAYER, body=LAYER.body.replace("(x, w)", "(x, v)")
                                 .replace("u = ", "v = Relu (w)  u = ")),
    "something else is read": replace(
        LAYER, body=LAYER.body.replace("s = Add (u, r)", "s = Add (u, r)  t = Relu (s)"),
        outputs="ty",
    ),
    "no vectors": replace(LAYER, columns=70),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case = REFUSED[name]
    signature = case.signature() if "t" not in case.outputs else _with(case)
    assert isinstance(template_for(signature), Refused)


def _with(case: Case) -> RegionSignature:
    made = replace(case, outputs="sy").signature()
    return replace(made, body=made.body.replace("=> (s, y)", "=> (t, y)"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "depth"), [(9, 3072), (50, 4096), (197, 3072)])
def test_what_it_needs_is_there(rows: int, depth: int, tmp_path: Path) -> None:
    case = replace(CASES["with its sum"], rows=(rows,), depth=depth, columns=768)
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused), sources.reason
    part, join = (compile_step(step, 90, tmp_path) for step in sources[0].steps)
    assert part.shared_bytes <= min(SHARED_BYTES.values())
    assert_fits(join, tmp_path, "join")
