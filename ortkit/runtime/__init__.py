"""Sessions: the part of ortkit that talks to ONNX Runtime."""
