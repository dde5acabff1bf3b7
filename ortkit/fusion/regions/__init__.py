"""Regions of any kind: how they are found, priced, named and written as fused nodes."""
