"""Declared operators in PyTorch."""
