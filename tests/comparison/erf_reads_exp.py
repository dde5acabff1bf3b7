"""A check for `ortkit reduce`: does Erf read, through whatever nodes, what Exp makes?"""

import sys

import wire

reached: set[str] = set()
for node in wire.nodes_of(wire.graph_of(sys.argv[1])):
    is_reached = node.op_type == "Exp" or bool(reached & set(node.inputs))
    reached.update(node.outputs if is_reached else ())
    if node.op_type == "Erf" and is_reached:
        sys.exit(0)
sys.exit(1)
