"""Kernels for CPUs: ONNX function bodies lowered to TIR, compiled by TVM's LLVM."""
