"""Tuning: which of several kernels for a region is fastest here, found by running them."""
