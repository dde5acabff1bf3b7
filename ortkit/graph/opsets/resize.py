"""Upsample and the Resize of opset 10 as the Resize of today.

Source: onnxruntime 1.31.1, `UpsampleBase`: before opset 11 the place in the input is the place in
the output over the scale, and the nearest element is the one below where an axis grows and the one
above where it shrinks.
"""

from __future__ import annotations

import numpy as np

from ortkit.graph.opsets.form import Form, Known, New, Operand


def upsample_since_9(form: Form, _known: Known) -> Form | str:
    """Make the scales an input."""
    scales = New(np.array(form.reals("scales"), np.float32), "scales")
    return form.without("scales").reading(form.input(0), scales)


def resize_since_11(form: Form, known: Known) -> Form | str:
    """Say which places in the input are meant, and make room for the region of interest."""
    x, scales = form.input(0), form.input(1)
    mode = form.text("mode", "nearest")
    rounding = "floor"
    if mode == "nearest":
        factors = known.array(scales)
        if factors is None:
            return "its scales are not constant"
        if not (factors >= 1).all():
            if (factors > 1).any():
                return "some axes grow and some shrink"
            rounding = "ceil"
    region: Operand = None
    if known.version < 13:
        region = New(np.zeros(0, np.float32), "roi")
    made = form.reading(x, region, scales)
    made = made.having(coordinate_transformation_mode="asymmetric")
    return made.having(nearest_mode=rounding) if mode == "nearest" else made


def resize_since_13(form: Form, known: Known) -> Form | str:
    """Leave out what was required and empty."""
    x, region, scales, sizes = (form.input(index) for index in range(4))
    mode = form.text("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_half_pixel_for_nn":
        return f"the coordinates {mode!r} are gone"
    if mode != "tf_crop_and_resize":
        region = None
    if sizes is not None and scales is not None:
        shape = known.shape(scales)
        if shape != (0,):
            return "both its scales and its sizes are given"
        scales = None
    return form.reading(x, region, scales, sizes)
