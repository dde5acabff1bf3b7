"""A check for `ortkit reduce`: does Erf read, through whatever nodes, what Exp makes?"""

import sys

import onnx

reached: set[str] = set()
for node in onnx.load(sys.argv[1]).graph.node:
    is_reached = node.op_type == "Exp" or bool(reached & set(node.input))
    reached.update(node.output if is_reached else ())
    if node.op_type == "Erf" and is_reached:
        sys.exit(0)
sys.exit(1)
