"""Regions with a matrix product."""
