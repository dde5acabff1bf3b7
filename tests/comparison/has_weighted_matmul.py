"""A check for `ortkit reduce`: is there a product with a weight of two axes?"""

import sys

import onnx

model = onnx.load(sys.argv[1], load_external_data=False)
weights = {one.name for one in model.graph.initializer if len(one.dims) == 2}
products = [node for node in model.graph.node if node.op_type == "MatMul"]
sys.exit(not any(node.input[1] in weights for node in products))
