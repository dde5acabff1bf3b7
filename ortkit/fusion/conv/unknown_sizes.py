"""Convolutions that have no kernel as long as the height and width of their images are unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortkit.graph.shapes.fixed import label_of
from ortkit.graph.symbolic.dims import Atom, Size, names, sole_atom
from ortkit.rewrite.scope import Scope


def unknown_sizes_note(scopes: Sequence[Scope]) -> str:
    """Return which sizes should be given so that more convolutions can have kernels.

    Args:
        scopes: The graphs, with fused nodes in place.

    Returns:
        A line for the report; empty if there is nothing to give.
    """
    count, unknown = 0, set[str]()
    for scope in scopes:
        labels = _labels(scope)
        for node in scope.nodes():
            if (node.domain, node.op_type) != ("", "Conv") or node.inputs[0] is None:
                continue
            shape = scope.shapes.shape(node.inputs[0]) or ()
            found = set[str]().union(*(_given(size, labels) for size in shape[2:]))
            count += bool(found)
            unknown |= found
    if not count:
        return ""
    flags = " ".join(f"--fix-shape {name}=N" for name in sorted(unknown))
    what = "1 convolution reads" if count == 1 else f"{count} convolutions read"
    return f"{what} images of unknown sizes and may have no kernel for that; give {flags}"


def _labels(scope: Scope) -> Mapping[Atom, str]:
    """Return what to call the sizes of the model's inputs that have no name."""
    return {
        atom: label_of(value, axis)
        for value in scope.model.graph.inputs
        for axis, size in enumerate(scope.shapes.shape(value) or ())
        if (atom := sole_atom(size)) is not None and atom.kind == "size"
    }


def _given(size: Size, labels: Mapping[Atom, str]) -> set[str]:
    """Return the names, and places of inputs, that a size depends on."""
    atoms = () if isinstance(size, int) else size.atoms()
    return {*names(size), *(labels[atom] for atom in atoms if atom in labels)}
