"""Hand-written kernels, readers of the bodies that they are for, and the native shim.

The shim that every kernel library contains is an archive and its headers: package data, built by
custom_ops/CMakeLists.txt when ortkit is installed.
"""
