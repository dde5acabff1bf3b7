"""A check for `ortkit reduce`: is there a product with a weight of two axes?"""

import sys

import wire

graph = wire.graph_of(sys.argv[1])
weights = {name for name, rank in wire.ranks_of(graph).items() if rank == 2}
products = [node for node in wire.nodes_of(graph) if node.op_type == "MatMul"]
sys.exit(not any(node.inputs[1] in weights for node in products))
