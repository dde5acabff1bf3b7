"""ONNX Runtime itself: its versions beside each other, and what its optimizers do to a model."""
