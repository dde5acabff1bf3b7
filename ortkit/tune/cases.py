"""What is tuned: a region, and the sizes at which it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.tune.timing_child import TimedTensor

Shape = tuple[int, ...]
#: ONNX TensorProto.DataType -> numpy's name, the coarser one first.
_NARROW = {16: "bfloat16", 10: "float16"}


@dataclass(frozen=True)
class TuneCase:
    """A region at given sizes.

    Args:
        signature: Of the region.
        sizes: A number for each of its named sizes, in the order of `symbols_of`.
        share: Part of the model's time that its nodes take at these sizes, 0 to 1.
        nodes: How many nodes of the model there are.
    """

    signature: RegionSignature
    sizes: tuple[int, ...] = ()
    share: float = 1.0
    nodes: int = 1

    @property
    def bucket(self) -> str:
        """The sizes rounded up to powers of two, such as `s0=128,s1=64`; empty if none is named.

        In it times hold: that a kernel for any size is fastest may depend on its size.
        """
        return ",".join(
            f"s{index}={1 << max(0, size - 1).bit_length()}"
            for index, size in enumerate(self.sizes)
        )

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The named sizes."""
        names = symbols_of((*self.signature.inputs, *self.signature.outputs))
        return dict(zip(names, self.sizes, strict=True))

    def value(self, extent: Extent) -> int:
        """Return a size of a kernel, in which the named sizes are called `s0`, `s1` ..."""
        return extent.factor * prod(self.sizes[int(name[1:])] for name in extent.symbols)

    def shape(self, spec: TensorSpec) -> Shape:
        """Return the sizes of a tensor."""
        return tuple(self.size(extent_of(dim)) for dim in spec.shape)

    def size(self, extent: Extent) -> int:
        """Return a size."""
        return extent.factor * prod(self.numbers[name] for name in extent.symbols)


def tensors_of(case: TuneCase) -> tuple[tuple[TimedTensor, ...], tuple[TimedTensor, ...]]:
    """Return a region's inputs and outputs as processes that time its kernels get them."""
    signature = case.signature
    rounded = _rounds_to(signature)
    inputs = tuple(TimedTensor(spec.dtype, case.shape(spec)) for spec in signature.inputs)
    # A user's kernel may add up along any axis, in the order of its loops.
    lengths = [size for timed_tensor in inputs for size in timed_tensor.shape]
    terms = 0 if signature.body else max(lengths, default=0)
    outputs = tuple(
        TimedTensor(
            spec.dtype, case.shape(spec), rounded if spec.dtype == "float32" else "", terms
        )
        for spec in signature.outputs
    )
    return inputs, outputs


def _rounds_to(signature: RegionSignature) -> str:
    """Return the narrow type that values in a region are rounded to; empty for none."""
    if not signature.body:  # a user's kernel
        return ""
    kinds = {attribute.i for node in signature.function().node if node.op_type == "Cast"
             for attribute in node.attribute if attribute.name == "to"}  # fmt: skip
    return next((name for number, name in _NARROW.items() if number in kinds), "")


def solve_sizes(signature: RegionSignature, shapes: Sequence[Shape]) -> tuple[int, ...] | None:
    """Return the named sizes from the inputs' shapes; None if they do not fit or do not tell them.

    Args:
        signature: Of a region.
        shapes: Of its inputs, by position.
    """
    if len(shapes) != len(signature.inputs):
        return None
    known: dict[str, int] = {}
    for spec, shape in zip(signature.inputs, shapes, strict=True):
        if len(spec.shape) != len(shape):
            return None
        for dim, size in zip(spec.shape, shape, strict=True):
            if not _learn(extent_of(dim), size, known):
                return None
    names = symbols_of((*signature.inputs, *signature.outputs))
    found = tuple(known[name] for name in names if name in known)
    return found if len(found) == len(names) and min(found, default=1) > 0 else None


def _learn(extent: Extent, size: int, known: dict[str, int]) -> bool:
    """Solve for the one name that is not known yet; False if the size contradicts the rest."""
    unknown = [name for name in extent.symbols if name not in known]
    factor = extent.factor * prod(_values(extent.symbols, known))
    if not unknown:
        return factor == size
    if len(unknown) > 1 or not factor:
        return True
    if size % factor:
        return False
    known[unknown[0]] = size // factor
    return True


def _values(names: Iterable[str], known: Mapping[str, int]) -> list[int]:
    return [known[name] for name in names if name in known]
