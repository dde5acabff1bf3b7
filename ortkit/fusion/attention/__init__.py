"""Regions with attention."""
