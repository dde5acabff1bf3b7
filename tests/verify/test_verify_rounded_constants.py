"""Which constants have values that a half-precision type holds."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir

from ortkit.verify.rounded_constants import _is_in


def test_a_sentinel_is_no_half_and_no_warning() -> None:
    array = np.array([0.5, np.finfo(np.float32).min], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not _is_in(array, ir.DataType.FLOAT16)
        assert _is_in(array[:1], ir.DataType.FLOAT16)
