"""Whole subgraphs compiled by TVM, behind ONNX Runtime."""
