"""Chains of convolution blocks as one group each: NHWC from its first block to its last.

What ONNX Runtime gives and takes is NCHW: a chain begins and ends with a change of layout, or with
a kernel that reads NCHW.
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC, Described
from ortkit.fusion.conv.chains import Chain, find_chains, is_read_outside
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.kernels.signature import TensorSpec
from ortkit.provider.own.anchored_groups import Accepts, AnchoredGroup, Builder
from ortkit.provider.own.program_builder import spec_of
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope


def chain_groups(scope: Scope, accepts: Accepts, *, bakes: bool) -> list[AnchoredGroup | Refused]:
    """Return the chains of a main graph that pay.

    Args:
        scope: The copy's.
        accepts: Says why there is no kernel for a signature.
        bakes: Whether weights go into the kernel library.
    """
    assert isinstance(scope.root, ir.Graph)
    chains = [one for one in find_chains(scope, scope.root, accepts) if not one.reason]
    return [
        _Chained(scope, chain, Builder(bakes, accepts, scope.opset())).group for chain in chains
    ]


class _Chained:
    """Writes the program of one chain."""

    def __init__(self, scope: Scope, chain: Chain, builder: Builder) -> None:
        self._scope = scope
        self._builder = builder
        self._inside = chain.nodes
        self._entered: dict[ir.Value, int] = {}
        self._nhwc: dict[ir.Value, int] = {}
        self._means: dict[ir.Value, int] = {}
        self._leaving: dict[ir.Value, int] = {}
        self.group = self._group(chain)

    def _group(self, chain: Chain) -> AnchoredGroup | Refused:
        for block, described in zip(chain.blocks, chain.described, strict=True):
            if refused := self._put(block, described):
                return refused
        if self._builder.refused is not None:
            return self._builder.refused
        return AnchoredGroup(
            self._builder.program("convolutions", list(self._leaving.values())),
            tuple(self._entered),
            tuple(self._leaving),
            self._builder.held,
            chain.nodes,
            Prediction(chain.cost.before, chain.cost.after),
            tuple(block.output.name or "" for block in chain.blocks),
            self._builder.origins,
        )

    def _put(self, block: Block, described: Described) -> Refused | None:
        """Add the kernel of one block, and the Transpose of its result where other nodes read
        it."""
        signature, builder = described.signature, self._builder
        places: list[int] = []
        for value in block.operands:
            place = self._operand(block, value)
            if isinstance(place, Refused):
                return place
            places.append(place)
        specs = signature.inputs[len(places) :]
        for spec, weight in zip(specs, described.weights, strict=True):
            if isinstance(weight, ir.Value):
                return Refused(f"the weight {weight.name!r} is packed already")
            places.append(builder.weight(spec, weight))
        made = [builder.add(spec) for spec in signature.outputs]
        builder.step(signature, places, made)
        self._nhwc[block.output] = made[0]
        if block.pooled:
            self._means[block.output] = made[1]
        if is_read_outside(block.output, self._inside):
            name = block.output.name or ""
            self._leaving[block.output] = builder.transpose(made[0], TO_NCHW, name)
        return None

    def _operand(self, block: Block, value: ir.Value) -> int | Refused:
        if block.kind == "squeeze_excite":
            return self._means[value]
        if value in self._nhwc:
            return self._nhwc[value]
        if value not in self._entered:
            spec = spec_of(self._scope, value)
            if isinstance(spec, Refused):
                return spec
            self._entered[value] = self._builder.enter(_named(spec, value))
        if block.kind == "stem_conv" and value is block.source:
            return self._entered[value]
        place = self._builder.transpose(self._entered[value], TO_NHWC, value.name or "")
        self._nhwc[value] = place
        return place


def _named(spec: TensorSpec, value: ir.Value) -> TensorSpec:
    return TensorSpec(value.name or "", spec.dtype, spec.shape)
