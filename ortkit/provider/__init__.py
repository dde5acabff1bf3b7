"""Execution providers of ONNX Runtime's: those written in Python, and ortkit's own."""
