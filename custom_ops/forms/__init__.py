"""Readers of function bodies: they say which kernel a region is for."""
