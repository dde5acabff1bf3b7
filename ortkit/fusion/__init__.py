"""Regions: what is left between heavy ops, found, described, and put back as one node."""
