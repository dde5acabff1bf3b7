"""What fused ops compute: each op's definition and its body in standard ONNX."""
