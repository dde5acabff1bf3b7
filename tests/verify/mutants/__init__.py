"""Faults that are planted in optimized models, to measure the share that verification catches."""
