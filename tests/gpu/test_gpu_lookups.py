"""Rows of tables that kernels look up on a GPU, against the model without kernels there."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import ortkit

WORDS, PLACES, WIDTH = 301, 70, 768


def embedding(width: int) -> onnx.ModelProto:
    """Return words and places looked up, added and normalized; the sum is read too."""
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (int64[b, n] i, int64[1, n] j) => (float16[b, n, {width}] y, float16[b, n, {width}] s)
        {{ r = Gather(w, i)  p = Gather(v, j)  s = Add(r, p)
           y = LayerNormalization<axis = -1>(s, g, h) }}"""
    )
    random = np.random.default_rng(0)
    for name, shape in (
        ("w", (WORDS, width)), ("v", (PLACES, width)), ("g", (width,)), ("h", (width,)),
    ):  # fmt: skip
        array = random.standard_normal(shape).astype(np.float16)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize("width", [WIDTH, 100])
@pytest.mark.parametrize("graph", [False, True], ids=["", "cuda graph"])
def test_rows_are_looked_up_in_the_kernel(width: int, graph: bool) -> None:
    pytest.importorskip("triton")
    proto = embedding(width)
    made = ortkit.optimize(proto, ortkit.OptimizeOptions(target="cuda", verify=False))
    kinds = [region.kind for region in made.report.regions if region.emitted_as]
    assert kinds == ["gather_add_layer_norm"]
    random = np.random.default_rng(1)
    with (
        ortkit.Session(made, "cuda", kernels="require", cuda_graph=graph) as session,
        ortkit.Session(proto, "cuda") as plain,
    ):
        for batch, length in ((1, 1), (3, 70), (2, 16), (9, 33)):
            # Some count back, and some name no row: ONNX Runtime's kernel writes zeros there.
            # Before and behind a table there are other tensors, which are not zeros.
            feeds = {
                "i": random.integers(-2 * WORDS, 2 * WORDS, (batch, length)),
                "j": random.integers(-2 * PLACES, 2 * PLACES, (1, length)),
            }
            found, expected = session.run(feeds), plain.run(feeds)
            np.testing.assert_array_equal(found["s"], expected["s"])
            np.testing.assert_allclose(
                found["y"].astype(np.float64), expected["y"], rtol=4e-3, atol=4e-3
            )
