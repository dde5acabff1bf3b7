"""Kernels of declared operators that Triton compiles."""
