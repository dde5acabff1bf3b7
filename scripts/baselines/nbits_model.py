"""A model of products with weights in 4 and 8 bits, as other tools write it: MatMulNBits.

No model of `models/` has such products for GPUs. `ortkit.precision` writes them for CPUs alone.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

#: Types of rows and scales.
DTYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
_SIZE = 256
#: Of each product its rows by name, its block, its bits, whether it has zero points and a bias.
_PRODUCTS = (
    (("batch", "sequence"), 32, 4, False, False),
    (("batch", "sequence"), 128, 4, True, True),
    (("batch", 1), 32, 4, False, True),
    ((1, 200), 64, 4, True, False),
    ((1, 200), 32, 8, False, False),
)


def build(dtype: str) -> onnx.ModelProto:
    """Return the products, each behind an input of its own and with a Gelu and a sum behind it."""
    held, nodes, inputs, results = list[onnx.TensorProto](), list[onnx.NodeProto](), [], []
    for number, (rows, block, bits, has_zeros, has_bias) in enumerate(_PRODUCTS):
        shape = (*rows, _SIZE)
        blocks = _SIZE // block
        weight = np.full((_SIZE, blocks, block * bits // 8), 0x5A, np.uint8)
        zeros = np.full((_SIZE, -(-blocks * bits // 8)), 0x77, np.uint8)
        held.append(numpy_helper.from_array(weight, f"w{number}"))
        held.append(_floats(f"s{number}", dtype, (_SIZE * blocks,)))
        names = [f"x{number}", f"w{number}", f"s{number}", "", "", ""]
        if has_zeros:
            held.append(numpy_helper.from_array(zeros.reshape(-1), f"z{number}"))
            names[3] = f"z{number}"
        if has_bias:
            held.append(_floats(f"b{number}", dtype, (_SIZE,)))
            names[5] = f"b{number}"
        product, bent, result = (f"{stem}{number}" for stem in ("p", "g", "y"))
        nodes += [
            helper.make_node(
                "MatMulNBits", names, [product], domain="com.microsoft", K=_SIZE, N=_SIZE,
                bits=bits, block_size=block, accuracy_level=4 if dtype == "float32" else 0,
            ),
            helper.make_node("Gelu", [product], [bent]),
            helper.make_node("Add", [bent, f"x{number}"], [result]),
        ]  # fmt: skip
        inputs.append(helper.make_tensor_value_info(f"x{number}", DTYPES[dtype], shape))
        results.append(helper.make_tensor_value_info(result, DTYPES[dtype], shape))
    graph = helper.make_graph(nodes, "nbits", inputs, results, held)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _floats(name: str, dtype: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    values = np.full(shape, 0.03125, np.float32)  # exact in all types
    return helper.make_tensor(name, DTYPES[dtype], shape, values.tolist())
