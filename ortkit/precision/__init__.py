"""Faster precisions: models that compute in half the bits where that is safe."""
