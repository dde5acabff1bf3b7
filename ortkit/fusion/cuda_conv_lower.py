"""Putting chains of convolution blocks back on CUDA: a fused node each, NHWC between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ortkit.fusion.cuda_conv_blocks import PASS, Block
from ortkit.fusion.cuda_conv_bodies import TO_NCHW, TO_NHWC, Described
from ortkit.fusion.cuda_conv_chains import RULE, Chain, is_read_outside
from ortkit.fusion.cuda_conv_cost import block_cost
from ortkit.fusion.lower import drop_initializer, import_fused
from ortkit.graph.value_names import CHANNELS_LAST
from ortkit.report import RegionReport
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe


def settle_chain(
    scope: Scope,
    chain: Chain,
    refused: Mapping[str, str],
    replaced: dict[ir.Value, ir.Value],
) -> Iterator[RegionReport]:
    """Put a chain back if it is taken and all of its kernels are there; report each block.

    Args:
        scope: The chain's.
        chain: As it was found.
        refused: By the key of a signature, why there is no kernel for it.
        replaced: Gets what stands for each result that others read.
    """
    reason = chain.reason
    if not reason:
        reason = next((refused[key] for key in chain.signatures if key in refused), "")
    costs = [block_cost(scope, block) for block in chain.blocks]
    if not reason and not lower_chain(scope, chain, replaced):
        reason = "rolled back or out of fuel"
    for number, (block, cost) in enumerate(zip(chain.blocks, costs, strict=True)):
        emitted = "" if reason else chain.described[number].signature.op_type
        yield RegionReport(
            kind=block.kind,
            at=block.output.name or "",
            nodes=len(block.nodes),
            emitted_as=emitted or None,
            reason=reason,
            inputs=len(block.operands),
            outputs=2 if block.is_pooled else 1,
            predicted_before_ns=round(cost.before),
            predicted_after_ns=round(cost.after),
        )


def lower_chain(scope: Scope, chain: Chain, replaced: dict[ir.Value, ir.Value]) -> bool:
    """Replace the chain's nodes by fused nodes. Returns False if that was denied.

    Args:
        scope: The chain's.
        chain: One that is taken.
        replaced: Gets what stands for each result that others read.
    """
    last = chain.blocks[-1]
    if not scope.log.claim(PASS, RULE, last.output.name or "", describe(last.last)):
        return False
    read = {value for node in chain.nodes for value in node.inputs if value is not None}
    lowering = _Lowering(scope, chain.nodes, replaced)
    for block, described in zip(chain.blocks, chain.described, strict=True):
        lowering.put(block, described)
    for block in reversed(chain.blocks):
        scope.drop_if_unused(block.last)
    for value in read:
        drop_initializer(value)
    return True


class _Lowering:
    def __init__(
        self, scope: Scope, inside: frozenset[ir.Node], replaced: dict[ir.Value, ir.Value]
    ) -> None:
        self.scope = scope
        self.inside = inside
        self.replaced = replaced
        self.turned: dict[ir.Value, ir.Value] = {}
        """What a value is in NHWC."""
        self.means: dict[ir.Value, ir.Value] = {}
        """The means over the rows of a value."""

    def put(self, block: Block, described: Described) -> None:
        """Insert the fused node of one block, and what others read of it."""
        scope, signature = self.scope, described.signature
        name = block.output.name or "block"
        is_read = is_read_outside(block, self.inside)
        domain, op_type = import_fused(scope, signature)
        made = scope.insert(
            block.last,
            op_type,
            [*self._operands(block), *self._weights(described, block)],
            domain=domain,
            outputs=len(signature.outputs),
            name=f"{name}/fused",
        )
        for value, spec in zip(made, signature.outputs, strict=True):
            value.type = ir.TensorType(ir.DataType[spec.dtype.upper()])
            value.shape = ir.Shape(spec.shape)
        scope.rename(made[0], f"{name}{CHANNELS_LAST}")
        self.turned[block.output] = made[0]
        if block.is_pooled:
            self.means[block.output] = made[1]
        if is_read:
            back = self._back(block, made[0], name)
            scope.replace(block.output, back)
            self.replaced[block.output] = back

    def _back(self, block: Block, value: ir.Value, name: str) -> ir.Value:
        """Return a result in NCHW; where an image is one pixel no element moves."""
        if block.kind == "global_mean":
            shape = self.scope.constant(np.array([0, -1, 1, 1]), f"{name}/shape", block.last)
            (back,) = self.scope.insert(block.last, "Reshape", [value, shape], name=f"{name}/nchw")
        else:
            (back,) = self.scope.insert(
                block.last, "Transpose", [value], {"perm": TO_NCHW}, name=f"{name}/nchw"
            )
        return back

    def _operands(self, block: Block) -> list[ir.Value]:
        if block.kind == "squeeze_excite":
            return [self.means[block.source]]
        if block.is_planar:
            return [block.source, *(self._nhwc(value, block) for value in block.operands[1:])]
        return [self._nhwc(value, block) for value in block.operands]

    def _nhwc(self, value: ir.Value, block: Block) -> ir.Value:
        if value not in self.turned:
            made = self.scope.insert(
                block.last, "Transpose", [value], {"perm": TO_NHWC},
                name=f"{value.name}{CHANNELS_LAST}",
            )  # fmt: skip
            self.turned[value] = made[0]
        return self.turned[value]

    def _weights(self, described: Described, block: Block) -> list[ir.Value]:
        specs = described.signature.inputs[len(block.operands) :]
        return [
            self.scope.initializer(ir.tensor(array), f"{block.output.name}/{spec.name}")
            for array, spec in zip(described.weights, specs, strict=True)
        ]
