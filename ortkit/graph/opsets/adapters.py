"""What operators that changed look like in the version that changed them.

Each adapter takes a node as it is written in the version before and returns how the same is
written in this one, or says why that cannot be. Source: the change log of the ONNX operators and,
where ONNX leaves the old meaning open, what ONNX Runtime 1.31.1 computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from ortkit.graph.opsets.form import Form, Known, Made, New, Operand
from ortkit.graph.opsets.resize import (
    resize_since_11,
    resize_since_13,
    upsample_since_9,
)
from ortkit.graph.symbolic.dims import Size

Adapter = Callable[[Form, Known], Form | str]

_UNPADDED = ("NOTSET", "VALID")
_FLOAT_LIMIT = float(np.finfo(np.float32).max)
_NUMPY: Mapping[ir.DataType | None, np.dtype[np.floating]] = {
    ir.DataType.FLOAT: np.dtype(np.float32),
    ir.DataType.FLOAT16: np.dtype(np.float16),
    ir.DataType.DOUBLE: np.dtype(np.float64),
}


def _input_of(attribute: str, index: int) -> Adapter:
    """Return an adapter that makes an attribute of integers an input; an empty one is absent."""

    def adapt(form: Form, _known: Known) -> Form | str:
        values = form.integers(attribute)
        bare = form.without(attribute)
        return bare.with_input(index, _vector(values, attribute)) if values else bare

    return adapt


def _slice(form: Form, _known: Known) -> Form | str:
    axes = form.integers("axes")
    return form.without("starts", "ends", "axes").reading(
        form.input(0),
        _vector(form.integers("starts"), "starts"),
        _vector(form.integers("ends"), "ends"),
        _vector(axes, "axes") if axes else None,
    )


def _unsqueeze(form: Form, _known: Known) -> Form | str:
    return form.without("axes").reading(form.input(0), _vector(form.integers("axes"), "axes"))


def _top_k(form: Form, _known: Known) -> Form | str:
    return form.without("k").reading(form.input(0), _vector([form.integer("k", 1)], "k"))


def _split_counts(form: Form, _known: Known) -> Form | str:
    """Say how many outputs there are, which goes without saying before opset 18."""
    return form if form.input(1) is not None else form.having(num_outputs=form.outputs)


def _pad(form: Form, known: Known) -> Form | str:
    value, dtype = form.real("value", 0.0), known.dtype(form.input(0))
    filler = None
    if value != 0.0:
        if dtype not in _NUMPY:
            return f"its value is {value} and the type of its input is not known"
        filler = New(np.array(value, _NUMPY[dtype]), "value")
    pads = _vector(form.integers("pads"), "pads")
    return form.without("pads", "value").reading(form.input(0), pads, filler)


def _clip(form: Form, known: Known) -> Form | str:
    """Make the bounds inputs; left out, they are the limits of the type from here on."""
    x = form.input(0)
    low, high = form.real("min", -_FLOAT_LIMIT), form.real("max", _FLOAT_LIMIT)
    dtype = known.dtype(x)
    if dtype not in _NUMPY:
        return "the type of its input is not known"
    kind = _NUMPY[dtype]
    # The limits of float32 are those of the attributes, whatever the type is.
    limit = min(_FLOAT_LIMIT, float(np.finfo(kind).max))
    bounds = [
        None
        if dtype != ir.DataType.DOUBLE and bound == sign * _FLOAT_LIMIT
        else New(np.array(max(-limit, min(limit, bound)), kind), name)
        for name, bound, sign in (("min", low, -1), ("max", high, 1))
    ]
    return form.without("min", "max").reading(x, *bounds)


def _dropout(form: Form, _known: Known) -> Form | str:
    """Before opset 12 it drops nothing outside of training: it is the identity."""
    if form.has_output(1):
        return "its mask is read, which is all false before opset 12 and all true since"
    return form.without("ratio").named("Identity").with_outputs(1)


def _batch_normalization_spatial(form: Form, _known: Known) -> Form | str:
    if form.integer("spatial", 1) != 1:
        return "it normalizes each place by itself (spatial=0)"
    return form.without("spatial")


def _batch_normalization_training(form: Form, _known: Known) -> Form | str:
    """More outputs than one ask for training before opset 14."""
    if any(form.has_output(index) for index in range(1, form.outputs)):
        return "its statistics are read: it is for training"
    return form.with_outputs(1)


def _softmax(form: Form, known: Known) -> Form | str:
    """All axes from `axis` on are one before opset 13."""
    x, axis = form.input(0), form.integer("axis", 1)
    shape = known.shape(x)
    rank = None if shape is None else len(shape)
    if axis == -1 or (rank is not None and axis % max(rank, 1) == rank - 1):
        return form.having(axis=-1)
    if known.version < 14 and not _has_elements(shape):
        return f"its axes from {axis} on are one, and some may be of size zero"
    flat = Made("Flatten", (x,), {"axis": axis})
    inner = Made(form.op_type, (flat,), {"axis": -1})
    made = form.without("axis").named("Reshape").reading(inner, Made("Shape", (x,)))
    # A size of zero is zero, and not a size to copy.
    return made.having(allowzero=1) if known.version >= 14 else made


def _has_elements(shape: tuple[Size, ...] | None) -> bool:
    return shape is not None and all(isinstance(size, int) and size > 0 for size in shape)


def _group_normalization(form: Form, known: Known) -> Form | str:
    """Scale and bias are one per group before opset 21 and one per channel since."""
    x, groups = form.input(0), form.integer("num_groups", 0)
    shape = known.shape(x)
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        return "its number of channels is not known"
    each = channels // groups
    if each == 1:
        return form

    def spread(operand: Operand, name: str) -> Operand:
        array = known.array(operand)
        if array is not None:
            return New(np.repeat(array, each), name)
        column = Made("Unsqueeze", (operand, _vector([1], "axes")))
        wide = Made("Expand", (column, _vector([groups, each], "shape")))
        return Made("Reshape", (wide, _vector([channels], "shape")))

    return form.reading(x, spread(form.input(1), "scale"), spread(form.input(2), "bias"))


def _grid_sample(form: Form, _known: Known) -> Form | str:
    mode = form.text("mode", "bilinear")
    return form.having(mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _dft(form: Form, _known: Known) -> Form | str:
    axis = New(np.array(form.integer("axis", 1), np.int64), "axis")
    return form.without("axis").with_input(2, axis)


def _roi_align(form: Form, _known: Known) -> Form | str:
    return form.having(coordinate_transformation_mode="output_half_pixel")


def _scatter(form: Form, _known: Known) -> Form | str:
    return form.named("ScatterElements")


def _mean_variance(form: Form, _known: Known) -> Form | str:
    """Name the axes: the function that the newer schema holds knows no default."""
    return form if "axes" in form.attributes else form.having(axes=(0, 2, 3))


def _pool(form: Form, _known: Known) -> Form | str:
    """A window that begins in the padding at the end counts no more."""
    is_padded = any(form.integers("pads")) or form.text("auto_pad", "NOTSET") not in _UNPADDED
    if form.integer("ceil_mode", 0) and is_padded:
        return "with ceil_mode and padding it has fewer windows"
    return form


def _refused(reason: str) -> Adapter:
    return lambda _form, _known: reason


def _vector(values: object, name: str) -> New:
    return New(np.array(values, np.int64).reshape(-1), name)


#: By operator and the version that changed it. What is not here changed in no way that schemas
#: do not tell.
ADAPTERS: Mapping[tuple[str, int], Adapter] = MappingProxyType(
    {
        ("Upsample", 9): upsample_since_9,
        ("Upsample", 10): lambda form, _known: form.named("Resize"),
        ("BatchNormalization", 9): _batch_normalization_spatial,
        ("Scan", 9): _refused("scans are batched before opset 9"),
        ("Dropout", 10): _dropout,
        ("Slice", 10): _slice,
        ("TopK", 10): _top_k,
        ("Clip", 11): _clip,
        ("Pad", 11): _pad,
        ("Resize", 11): resize_since_11,
        ("Scatter", 11): _scatter,
        ("Dropout", 12): _dropout,
        ("Hardmax", 13): _softmax,
        ("LogSoftmax", 13): _softmax,
        ("ReduceSum", 13): _input_of("axes", 1),
        ("Resize", 13): resize_since_13,
        ("Softmax", 13): _softmax,
        ("Split", 13): _input_of("split", 1),
        ("Squeeze", 13): _input_of("axes", 1),
        ("Unsqueeze", 13): _unsqueeze,
        ("MeanVarianceNormalization", 13): _mean_variance,
        ("BatchNormalization", 14): _batch_normalization_training,
        ("RoiAlign", 16): _roi_align,
        **{
            (f"Reduce{name}", 18): _input_of("axes", 1)
            for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod",
                         "SumSquare")
        },
        ("Split", 18): _split_counts,
        ("AveragePool", 19): _pool,
        ("DFT", 20): _dft,
        ("GridSample", 20): _grid_sample,
        ("GroupNormalization", 21): _group_normalization,
        ("AveragePool", 22): _pool,
        ("LpPool", 22): _pool,
        ("MaxPool", 22): _pool,
    }
)  # fmt: skip
