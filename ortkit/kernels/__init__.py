"""Kernels: from a region's signature to one shared library that any ONNX Runtime loads.

In the order in which a region meets them: `signature` (what is to be computed), `layout` (its
iteration space), `backend` and `catalog` (who compiles it), `tvm/`, `compiler` and
`compile_child` (in processes of their own), `cache` and `record`, `manifest` and `link` (the
library), `build` (all of it in one call), `calibration` (what work costs).
"""

from ortkit.kernels.backend import Kernel, KernelBackend, Refused, Target
from ortkit.kernels.build import LibraryBuild, build_library, missing_toolchain, refusal
from ortkit.kernels.link import KernelLibrary
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text

__all__ = [
    "DOMAIN",
    "Kernel",
    "KernelBackend",
    "KernelLibrary",
    "LibraryBuild",
    "Refused",
    "RegionSignature",
    "Target",
    "TensorSpec",
    "body_text",
    "build_library",
    "missing_toolchain",
    "refusal",
]
