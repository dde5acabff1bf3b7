"""Runs of a model whose values are off by roundings: how far these move what it computes."""
