"""Kernels of object detectors."""
