"""Measured times and tuned choices of kernels."""
