"""Sizes with symbols: terms, division, bounds, and as text."""
