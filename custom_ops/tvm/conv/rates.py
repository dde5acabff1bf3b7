"""What convolutions cost one thread, by ONNX Runtime's kernels and by ours: what all share.

These rates and those of each kernel are of ONNX Runtime 1.31.1, convolutions in its blocked
layout, and of ours on an AVX-512 server core (2026-11), float32. Only their ratio decides.
"""

from __future__ import annotations

#: An element that a convolution writes.
RUNTIME_OUTPUT_NS, OUTPUT_NS = 0.2, 0.1
