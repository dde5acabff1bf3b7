"""Tiles of registers and the emitter that kernels share."""
