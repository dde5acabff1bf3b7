"""Kernels: from a region's signature to one shared library that any ONNX Runtime loads.

In the order in which a region meets them: `signature` (what is to be computed), `region` (how a
body is read and what its loops are), `backend` and `catalog` (who compiles it), `tvm` and
`triton`, `build` (processes that compile, the cache), `link` (the manifest and the library),
`tuning` (what work costs, which choices are fastest).
"""
