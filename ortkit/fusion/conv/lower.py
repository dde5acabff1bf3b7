"""Putting chains of convolution blocks back: a fused node each, NHWC between them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC, Described
from ortkit.fusion.conv.borders import is_read_outside, nhwc_of, to_nhwc
from ortkit.fusion.conv.chains import RULE, Chain
from ortkit.fusion.conv.finder import PASS
from ortkit.fusion.conv.targets import target_of
from ortkit.fusion.regions.lower import fused_name, import_fused, read_by
from ortkit.graph.analysis.value_names import CHANNELS_LAST
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe


def lower_chain(scope: Scope, chain: Chain, replaced: dict[ir.Value, ir.Value]) -> bool:
    """Replace the chain's nodes by fused nodes. Returns False if that was denied.

    Args:
        scope: The chain's.
        chain: One that is taken.
        replaced: Gets what stands for each result that others read.
    """
    last = chain.blocks[-1]
    name = last.output.name or ""
    if not scope.log.claim(PASS, RULE, name, describe(last.convs[0])):
        return False
    read = read_by(chain.nodes)
    lowering = _Lowering(scope, chain, replaced)
    for block, described in zip(chain.blocks, chain.described, strict=True):
        lowering.put(block, described)
    for node in (*(block.last for block in reversed(chain.blocks)), *chain.spared):
        if node.graph is not None:
            scope.drop_if_unused(node)
    for value in read:
        scope.drop_initializer(value)
    return True


class _Lowering:
    def __init__(self, scope: Scope, chain: Chain, replaced: dict[ir.Value, ir.Value]) -> None:
        self.scope = scope
        self.inside = chain.nodes
        self.spared = frozenset(chain.spared)
        self.kept = self.inside - self.spared
        self.spares = target_of(scope).spares
        self.replaced = replaced
        self.nhwc: dict[ir.Value, ir.Value] = {}
        """What a value is in NHWC."""
        self.means: dict[ir.Value, ir.Value] = {}
        """The means over the rows of a value."""

    def put(self, block: Block, described: Described) -> None:
        """Insert the fused node of one block, and what others read of it."""
        scope, signature = self.scope, described.signature
        name = block.output.name or "block"
        inputs = [*self._operands(block), *self._weights(described, block)]
        domain, op_type = import_fused(scope, signature)
        made = scope.insert(
            block.last,
            op_type,
            inputs,
            domain=domain,
            outputs=len(signature.outputs),
            name=f"{name}/fused",
            called=fused_name(name, signature),
        )
        for value, spec in zip(made, signature.outputs, strict=True):
            dtype = ir.DataType.from_numpy(np.dtype(spec.dtype))
            scope.declare(value, dtype, ir.Shape(spec.shape))
        if block.pooled:
            self.means[block.output] = made[1]
        for old, new in zip(block.results, made, strict=False):
            self._stand_in(block, old, new)

    def _stand_in(self, block: Block, old: ir.Value, new: ir.Value) -> None:
        """Let others read a result that is `new` in NHWC."""
        scope, is_read = self.scope, is_read_outside(old, self.inside)
        scope.rename(new, f"{old.name}{CHANNELS_LAST}")
        self.nhwc[old] = new
        for node in to_nhwc(old, self.kept):
            if node in self.spared:
                self.replaced[node.outputs[0]] = new
                scope.replace(node.outputs[0], new)
        if is_read:
            back = self._back(block, new, f"{old.name}/nchw")
            scope.replace(old, back)
            self.replaced[old] = back

    def _back(self, block: Block, value: ir.Value, name: str) -> ir.Value:
        """Return a result in NCHW; where an image is one pixel no element moves."""
        scope = self.scope
        if scope.shapes.rank(block.output) == 2:
            channels = (scope.shapes.shape(block.output) or ())[1]
            assert isinstance(channels, int)
            shape = scope.constant(np.array([0, channels]), f"{name}/shape", block.last)
            (back,) = scope.insert(block.last, "Reshape", [value, shape], name=name)
        elif block.is_pixel:
            shape = scope.constant(np.array([0, -1, 1, 1]), f"{name}/shape", block.last)
            (back,) = scope.insert(block.last, "Reshape", [value, shape], name=name)
        else:
            perm = {"perm": TO_NCHW}
            (back,) = scope.insert(block.last, "Transpose", [value], perm, name=name)
        return back

    def _operands(self, block: Block) -> list[ir.Value]:
        if block.is_gate:
            return [self.means[block.source]]
        if block.is_planar:
            return [block.source, *(self._nhwc(value, block) for value in block.operands[1:])]
        return [self._nhwc(value, block) for value in block.operands]

    def _nhwc(self, value: ir.Value, block: Block) -> ir.Value:
        if value not in self.nhwc:
            self.nhwc[value] = self._entered(value, block)
        return self.nhwc[value]

    def _entered(self, value: ir.Value, block: Block) -> ir.Value:
        """Return a value of the graph in NHWC."""
        source = nhwc_of(value)
        if self.spares and source is not None:
            return source
        perm = {"perm": TO_NHWC}
        name = f"{value.name}{CHANNELS_LAST}"
        return self.scope.insert(block.last, "Transpose", [value], perm, name=name)[0]

    def _weights(self, described: Described, block: Block) -> list[ir.Value]:
        specs = described.signature.inputs[len(block.operands) :]
        return [
            weight
            if isinstance(weight, ir.Value)
            else self.scope.initializer(ir.tensor(weight), f"{block.output.name}/{spec.name}")
            for weight, spec in zip(described.weights, specs, strict=True)
        ]
