"""Folders of onnxruntime-genai: optimized as a whole, and compared as language models."""
