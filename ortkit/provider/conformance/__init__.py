"""What a provider does with the test cases of the ONNX standard, whatever it is written in."""
