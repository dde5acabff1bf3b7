"""What a region computes, read from its ONNX function body: shared by all backends."""
