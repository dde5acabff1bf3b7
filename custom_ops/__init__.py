"""The custom-op shim that every model's kernel library contains: an archive and its header.

Both are package data, built by custom_ops/CMakeLists.txt when ortkit is installed.
"""
