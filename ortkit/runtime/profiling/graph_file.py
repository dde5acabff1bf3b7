"""ONNX Runtime's own optimized graph, written without what nobody reads of it."""

from __future__ import annotations

#: Weights go to a file of their own: reading the graph does not read them.
GRAPH_CONFIG = {
    "session.optimized_model_external_initializers_file_name": "graph.weights",
    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
}
