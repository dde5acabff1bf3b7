"""Convolutions and pooling."""
