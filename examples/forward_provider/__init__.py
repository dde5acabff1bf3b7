"""Nodes forwarded to numpy or torch, behind ONNX Runtime."""
