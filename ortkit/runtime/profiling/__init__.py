"""Profiles of sessions: ONNX Runtime's trace, read and joined with the model."""
