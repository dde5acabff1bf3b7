"""A simulated accelerator behind ONNX Runtime, written in Python."""
