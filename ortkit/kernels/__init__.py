"""Kernels: from a region's signature to one shared library that any ONNX Runtime loads.

In the order in which a region meets them: `signature` (what is to be computed), `layout` (its
iteration space), `backend` and `catalog` (who compiles it), `tvm/`, `compiler` and
`compile_child` (in processes of their own), `cache` and `record`, `manifest` and `link` (the
library), `build` (all of it in one call), `calibration` (what work costs).
"""
