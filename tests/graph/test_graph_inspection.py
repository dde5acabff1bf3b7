"""What `inspect` reads from a model besides its cost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import models
from ortkit.errors import UserError
from ortkit.graph.analysis.inspection import inspect_model


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.mark.slow
def test_the_published_size_of_resnet50() -> None:
    # 25.56 million parameters, of which the running means and variances are folded away; 4.09
    # thousand million multiply-adds (torchvision states both).
    found = inspect_model(models.build("resnet50", "full"), {"batch": 1})
    assert found.summary.parameters == pytest.approx(25.5e6, rel=0.01)
    assert found.cost.flops == pytest.approx(2 * 4.09e9, rel=0.01)
    assert found.cost.uncounted == 0


def test_functions_are_listed_and_followed_for_the_cost() -> None:
    model = parsed(
        """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
        g (float[3,4] x) => (float[3,4] y) { t = own.Twice(x)  y = own.Twice(t) }
        <domain: "own", opset_import: ["" : 20]> Twice (a) => (b) { b = Add(a, a) }"""
    )
    found = inspect_model(model)
    assert found.summary.ops == {"own::Twice": 2}
    assert [(function.name, function.nodes, function.calls) for function in found.functions] == [
        ("own::Twice", 1, 2)
    ]
    assert [(op.op, op.nodes, op.flops) for op in found.cost.ops] == [("Add", 2, 24)]
    assert len(model.functions) == 1


def test_unnamed_sizes_get_names_that_shape_takes() -> None:
    model = parsed(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[?, 4] x) => (float[?, 4] y) { y = Relu(x) }"""
    )
    found = inspect_model(model, {"x[0]": 3})
    assert found.inputs[0].shape == ("x[0]", 4)
    assert found.dynamic == {"x[0]": ("x[0]",)}
    assert found.cost.flops == 12
    with pytest.raises(UserError, match="did you mean 'x\\[0\\]'"):
        inspect_model(model, {"x[1]": 3})


def test_external_data_subgraphs_defaults_and_types(tmp_path: Path) -> None:
    model = parsed(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float16[n, 4] x, bool c) => (float16[n, 4] y) {
          y = If(c) <then_branch = t () => (float16[n, 4] p) { p = Relu(x) },
                     else_branch = e () => (float16[n, 4] q) { q = Add(x, w) }>
        }"""
    )
    weights = onnx.numpy_helper.from_array(np.ones((1024, 4), np.float16)[:1, :], "w")
    large = onnx.numpy_helper.from_array(np.ones((1024, 4), np.float16), "large")
    model.graph.initializer.extend([weights, large])
    default = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT16, [1, 4])
    model.graph.input.append(default)
    model.metadata_props.add(key="made", value="here")
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data",
              size_threshold=1024)  # fmt: skip
    found = inspect_model(tmp_path / "m.onnx")
    assert found.subgraphs == {"If": 2}
    assert found.dtypes == {"float16": 8200}
    assert [(item.location, item.tensors, item.bytes) for item in found.external] == [
        ("m.data", 1, 8192)
    ]
    assert [one.has_default for one in found.inputs] == [False, False, True]
    assert found.inputs[0].dtype == "float16"
    assert found.metadata == {"made": "here"}
    assert found.opsets == {"": 20}
