"""Regions by hand."""

from __future__ import annotations

from ortkit.kernels.signature import RegionSignature, TensorSpec

Dims = tuple[int | str, ...]


def region(
    body: str, inputs: dict[str, Dims], outputs: dict[str, Dims], dtype: str = "float32"
) -> RegionSignature:
    text = (
        f'<opset_import: ["" : 20]> f ({", ".join(inputs)}) => ({", ".join(outputs)}) {{{body}}}'
    )
    given, made = (
        tuple(TensorSpec(name, dtype, shape) for name, shape in specs.items())
        for specs in (inputs, outputs)
    )
    return RegionSignature("tuned", text, given, made)


SOFTMAX = region("Y = Softmax <axis = -1> (X)", {"X": ("n", 150)}, {"Y": ("n", 150)})

#: Of the rows of the model in conftest.py.
WIDTH = 512
