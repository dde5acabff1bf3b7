"""Linking kernels into one library with its manifest."""
