"""ONNX bodies of declared operators."""
