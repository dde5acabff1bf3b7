"""Kernels for GPUs: ONNX function bodies written as Triton source, compiled without a GPU."""
