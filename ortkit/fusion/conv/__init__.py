"""Regions with a convolution."""
