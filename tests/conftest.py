"""What all tests share."""

from __future__ import annotations

import os

# Read when onnxruntime is imported: lets it load models of the opset that onnx releases next,
# which many of onnx's own test cases are written in.
os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"
