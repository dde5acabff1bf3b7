"""Kernels for CUDA under compute-sanitizer."""
