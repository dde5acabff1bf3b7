"""Kernels of declared operators that TVM compiles."""
