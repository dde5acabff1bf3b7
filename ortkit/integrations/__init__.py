"""Optimized models in servers, registries and tools of others, one module for each."""
