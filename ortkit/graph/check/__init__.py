"""Whether a model is valid: its names, types, tensors, calls and attributes."""
