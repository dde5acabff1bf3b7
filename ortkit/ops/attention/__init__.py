"""Scaled dot-product attention: how it is found, what its parts mean, what it becomes."""
