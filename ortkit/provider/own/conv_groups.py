"""Chains of convolution blocks as one group each: NHWC from its first block to its last.

What ONNX Runtime gives and takes is NCHW: a chain begins and ends with a change of layout, or with
a kernel that reads NCHW.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx import helper

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC, Described
from ortkit.fusion.conv.borders import is_read_outside
from ortkit.fusion.conv.chains import Chain
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.duplicate import Accepts, Candidate
from ortkit.fusion.regions.region import FusedRegion
from ortkit.kernels.signature import TensorSpec, signature_of
from ortkit.provider.own.program_builder import Assembled, ProgramBuilder, spec_of
from ortkit.refusal import Refused, needed, refusals
from ortkit.rewrite.scope import Scope

#: Of the operators with a form of their own in a kernel's body; see `kernels.region.reader`.
_LEAST_OPSET = 13


def chain_program(
    scope: Scope, chain: Chain, accepts: Accepts, *, bakes: bool
) -> Assembled | Refused:
    """Return the program of a chain that pays, or why it has none.

    Args:
        scope: The copy's.
        chain: Of its main graph.
        accepts: Says why there is no kernel for a signature.
        bakes: Whether weights go into the kernel library.
    """
    return _Chained(scope, chain, accepts, ProgramBuilder(scope, bakes=bakes)).made


class _Chained:
    """Writes the program of one chain."""

    def __init__(
        self, scope: Scope, chain: Chain, accepts: Accepts, builder: ProgramBuilder
    ) -> None:
        self._scope = scope
        self._accepts = accepts
        self._builder = builder
        self._inside = chain.nodes
        self._nhwc: dict[ir.Value, ir.Value] = {}
        self._means: dict[ir.Value, ir.Value] = {}
        self._leaving: list[ir.Value] = []
        self.made = self._made(chain)

    def _made(self, chain: Chain) -> Assembled | Refused:
        for block, described in zip(chain.blocks, chain.described, strict=True):
            if refused := self._put(block, described):
                return refused
        nodes, inputs = tuple(self._inside), tuple(self._builder.inputs)
        region = FusedRegion("convolutions", nodes, inputs, tuple(self._leaving))
        candidate = Candidate(region, None, Prediction(chain.cost.before, chain.cost.after), "")
        self._builder.parts.append(candidate)
        return self._builder.assembled(self._leaving, candidate)

    @refusals
    def _put(self, block: Block, described: Described) -> Refused | None:
        """Add the kernel of one block, and the Transpose of its result where other nodes read
        it."""
        signature, builder = described.signature, self._builder
        read: list[ir.Value] = []
        for value in block.operands:
            operand = needed(self._operand(block, value))
            read.append(operand)
        for spec, weight in zip(signature.inputs[len(read) :], described.weights, strict=True):
            if isinstance(weight, ir.Value):
                return Refused(f"the weight {weight.name!r} is packed already")
            read.append(ir.Value(name=spec.name, const_value=ir.tensor(weight)))
            builder.hold(read[-1], spec)
        made = [ir.Value(name=spec.name) for spec in signature.outputs]
        for value, spec in zip(made, signature.outputs, strict=True):
            builder.add(value, spec)
        if refused := builder.compute(signature, read, made):
            return refused
        self._nhwc[block.output] = made[0]
        if block.pooled:
            self._means[block.output] = made[1]
        if is_read_outside(block.output, self._inside):
            self._leaving.append(block.output)
            return self._transpose(made[0], TO_NCHW, block.output)
        return None

    @refusals
    def _operand(self, block: Block, value: ir.Value) -> ir.Value | Refused:
        if block.is_gate:
            return self._means[value]
        if value in self._nhwc:
            return self._nhwc[value]
        if not self._builder.has(value):
            needed(spec_of(self._scope, value))
            self._builder.enter(value)
        if block.is_planar and value is block.source:
            return value
        self._nhwc[value] = ir.Value(name=value.name)
        return self._transpose(value, TO_NHWC, self._nhwc[value]) or self._nhwc[value]

    def _transpose(self, value: ir.Value, perm: Sequence[int], result: ir.Value) -> Refused | None:
        """Add a kernel that changes the order of axes; or say why there is none."""
        source = self._builder.spec(value)
        made = TensorSpec(result.name or "", source.dtype, tuple(source.shape[a] for a in perm))
        node = helper.make_node("Transpose", ["x"], ["y"], perm=list(perm))
        # Kernels are made of bodies from 13 on; the operator has not changed since 1.
        opset = max(self._scope.opset(), _LEAST_OPSET)
        signature = signature_of("transpose", [node], opset, {"x": source}, {"y": made})
        self._builder.add(result, made)
        return self._builder.compute(signature, [value], [result]) or self._accepts(signature)
