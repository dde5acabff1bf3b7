"""What the tests of fewer bits share: small models as text, with weights, run in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime

from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.products import Product, find_products
from ortkit.rewrite.log import RewriteLog
from tests.exact_sums import exact_in_graph

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return normal numbers; weights of [k, n] with a scale of k ** -0.5 keep their size."""
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal(shape)).astype(np.float32)


def model_of(text: str, header: str = HEADER, **weights: np.ndarray) -> ir.Model:
    """Read a graph given as text, with these initializers."""
    proto = onnx.parser.parse_model(f"{header} {text}")
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return open_model(proto)


def products_of(model: ir.Model, log: RewriteLog | None = None) -> tuple[Product, ...]:
    """Return a model's products."""
    return find_products(model, Shapes.infer(model), RewriteLog() if log is None else log)


def checked(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a message, once ONNX finds no fault in it."""
    proto = ir.to_proto(model)
    domains = {imported.domain for imported in proto.opset_import}
    onnx.checker.check_model(proto, full_check=domains == {""})
    return proto


def run(model: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    """Run a model with ONNX Runtime's optimizations on, and exact sums of bytes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        exact_in_graph(checked(model)).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    return session.run(None, feeds)


def off_by(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return the norm of the difference over the norm of what is wanted."""
    return float(np.linalg.norm(wanted - found) / np.linalg.norm(wanted))
