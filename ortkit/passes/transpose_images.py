"""transpose-images: Transposes beside convolutions are those of images, not of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.permutation import is_contrib_unary
from ortkit.analysis.transposed_resize import REASON, breaks_resize
from ortkit.graph.shapes.reshape import RESHAPES, reshape_target
from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

_TOKENS, _TO_NHWC, _TO_NCHW = (0, 2, 1), (0, 2, 3, 1), (0, 3, 1, 2)
#: Activations of one tensor; their further inputs are numbers.
_ACTIVATIONS = where(activation=True)


@dataclass(frozen=True)
class TransposeImages(GraphPass):
    """Let a convolution of tokens stand between Transposes of its image.

    Before:
        i = Reshape(Transpose<perm = [0, 2, 1]>(x), [n, c, h, w])           # x: [n, h w, c]
        t = Transpose<perm = [0, 2, 1]>(Reshape(Conv(i, W), [n, f, h w]))
        y = Gelu(t)
    After:
        i = Transpose<perm = [0, 3, 1, 2]>(Reshape(x, [n, h, w, c]))
        j = Transpose<perm = [0, 2, 3, 1]>(Gelu(Conv(i, W)))
        y = Reshape(j, [n, h w, f])

    There are as many Transposes as before. Where the convolution has a kernel for NHWC, both are
    the kernel's layout and go away, and the activation is a part of the kernel.

    Skips:
        * CUDA, where no kernel was measured with it.
        * Images of a height or a width that is not known.
        * Values in between that others read.
        * What a Resize reads that ONNX Runtime breaks as it moves a Transpose over it.

    Source:
        The order of the elements; ONNX Reshape-5 ... 25, Transpose-1 ... 25.
    """

    name: ClassVar[str] = "transpose-images"

    def run(self, scope: Scope) -> None:
        for node in list(scope.nodes()) if scope.traits.is_host else ():
            if node.graph is None or not node.outputs:
                continue
            site = Site(scope, node, self.name)
            if node.domain == "" and node.op_type in RESHAPES:
                _enter(site)
            elif node.domain == "" and node.op_type == "Transpose":
                _leave(site)
            elif _is_activation(node):
                _activate(site)


def _enter(site: Site) -> None:
    """Reshape tokens before they are transposed to an image that a convolution reads."""
    transpose = site.producer(site.input(0), "Transpose")
    if transpose is None or not any(_is_conv(reader) for reader in site.output.consumers()):
        return
    tokens, image = transpose.inputs[0], site.shape(site.output)
    before = site.shape(tokens)
    if tokens is None or before is None or not _is_transpose(site, transpose, _TOKENS):
        return
    if image is None or len(image) != 4 or image[:2] != (before[0], before[2]):
        return
    if not site.only_use(transpose.outputs[0]):
        site.miss("others read the tokens as they are transposed")
        return
    if breaks_resize([site.output]):
        site.miss(REASON)
        return
    wanted = (image[0], image[2], image[3], image[1])
    target = _target(site, image, before, wanted)
    if target is not None and site.claim("tokens"):
        pixels = site.op("Reshape", [tokens, site.constant(target)])
        site.replace(site.op("Transpose", [pixels], {"perm": _TO_NCHW}))


def _leave(site: Site) -> None:
    """Transpose the image that a convolution made before it is flattened to tokens."""
    flat = site.producer(site.input(0), *RESHAPES)
    source = None if flat is None else flat.inputs[0]
    if flat is None or source is None or not _is_transpose(site, site.node, _TOKENS):
        return
    image, tokens = site.shape(source), site.shape(site.output)
    if not _is_convolved(site, source) or image is None or tokens is None:
        return
    if len(image) != 4 or image[:2] != (tokens[0], tokens[2]):
        return
    if not site.only_use(flat.outputs[0]):
        site.miss("others read the image as it is flattened")
        return
    before = (image[0], image[2], image[3], image[1])
    target = _target(site, image, before, tokens)
    if target is not None and site.claim("image"):
        pixels = site.op("Transpose", [source], {"perm": _TO_NHWC})
        site.replace(site.op("Reshape", [pixels, site.constant(target)]))


def _activate(site: Site) -> None:
    """Apply an activation to what a convolution made before that is transposed to NHWC."""
    flat = site.producer(site.input(0), *RESHAPES)
    transpose = site.producer(site.input(0) if flat is None else flat.inputs[0], "Transpose")
    source = None if transpose is None else transpose.inputs[0]
    if transpose is None or source is None or not _is_transpose(site, transpose, _TO_NHWC):
        return
    made = None if source is None else source.producer()
    if made is None or not _is_conv(made) or made.graph is not site.node.graph:
        return
    between = [source, transpose.outputs[0], *([] if flat is None else flat.outputs)]
    if not all(site.only_use(value) for value in between):
        return
    if not all(site.scope.is_constant(value) for value in site.node.inputs[1:] if value):
        return
    if site.claim("activation"):
        own, node = site.node.attributes, site.node
        attributes = {name: attribute.value for name, attribute in own.items()}
        value = site.op(node.op_type, [source, *node.inputs[1:]], attributes, domain=node.domain)
        value = site.op("Transpose", [value], {"perm": _TO_NHWC})
        if flat is not None:
            kept = {name: attribute.value for name, attribute in flat.attributes.items()}
            value = site.op(flat.op_type, [value, *flat.inputs[1:]], kept)
        site.replace(value)


def _target(
    site: Site, image: tuple[Size, ...], before: tuple[Size, ...], wanted: tuple[Size, ...]
) -> tuple[int, ...] | None:
    """Return the target of a Reshape between an image and its tokens; the reason if none."""
    if not all(isinstance(size, int) and size for size in image[2:]):
        site.miss("the height or the width of the image is not known")
        return None
    return reshape_target(before, wanted)


def _is_conv(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type == "Conv"


def _is_convolved(site: Site, value: ir.Value) -> bool:
    """Say whether a convolution made a value, with or without an activation."""
    node = value.producer()
    if node is not None and _is_activation(node) and site.only_use(value):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and _is_conv(node)


def _is_transpose(site: Site, node: ir.Node, perm: tuple[int, ...]) -> bool:
    return Site(site.scope, node, site.pass_name).perm() == perm


def _is_activation(node: ir.Node) -> bool:
    return is_contrib_unary(node) or (node.domain == "" and node.op_type in _ACTIVATIONS)
