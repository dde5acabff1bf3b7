"""A convolution of patches, and what a vision transformer does with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from ortkit.passes.presets import preset
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline
from ortkit.targets.target import Target

FORMS = {
    "2-d": ("batch, 3, 8, 12", "5, 3, 4, 6", "strides = [4, 6]", "5, 4", (2, 3, 8, 12)),
    "1-d": ("batch, 3, 12", "5, 3, 4", "strides = [4]", "5, 3", (2, 3, 12)),
    "3-d": ("batch, 2, 4, 4, 6", "5, 2, 2, 2, 3", "strides = [2, 2, 3]", "5, 8", (3, 2, 4, 4, 6)),
}


def model_of(form: str) -> onnx.ModelProto:
    image, weight, strides, flat, _ = FORMS[form]
    rows, places = flat.split(", ")
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[{image}] x, float[{weight}] w, float[{rows}] b) => (float[batch, {places}, {rows}] y)
    <int64[3] s = {{0, {rows}, {places}}}> {{
      c = Conv <{strides}> (x, w, b)  f = Reshape (c, s)  y = Transpose <perm = [0, 2, 1]> (f)
    }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for value in list(model.graph.input)[1:]:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
    del model.graph.input[1:]
    return model


@pytest.mark.parametrize("form", FORMS)
def test_nothing_but_a_product_is_left(form: str) -> None:
    """The Transposes around the product cancel, and the results are those of the convolution."""
    before = model_of(form)
    model = ir.from_proto(before)
    target = Target("cuda", "sm_90")
    Pipeline(select_passes(",".join(preset(2, "cuda")), 0)).run(model, RewriteOptions(target, 2))
    ops = [node.op_type for node in model.graph]
    assert ops == ["Reshape", "Transpose", "Reshape", "MatMul", "Add"]
    x = np.random.default_rng(1).standard_normal(FORMS[form][-1]).astype(np.float32)
    want, got = (
        onnxruntime.InferenceSession(each.SerializeToString()).run(None, {"x": x})[0]
        for each in (before, ir.to_proto(model))
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
