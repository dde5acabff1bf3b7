"""A block's signature for CUDA: in half precision, with channel-packed weights."""

from __future__ import annotations

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NHWC, BodyWriter, Described
from ortkit.rewrite.scope import Scope


def describe_cuda_block(scope: Scope, block: Block) -> Described:
    """Return the signature and weights of a block for CUDA."""
    return CudaBodyWriter(scope, block).describe()


class CudaBodyWriter(BodyWriter):
    """Writes the body of one block in half precision."""

    @property
    def own(self) -> str:
        """The type of all of its tensors."""
        return self._dtype(self.block.output)

    def describe(self) -> Described:
        """Return the block's signature and weights."""
        return self.global_mean() if self.block.kind == "global_mean" else super().describe()

    def global_mean(self) -> Described:
        """Describe the means over an image, which need no other layout."""
        source = self._input("x", self._nhwc(self.block.source))
        self._result(self._mean(source, [1, 2], keep=1), self._nhwc(self.block.output))
        return self._described()

    def pool(self) -> Described:
        """Describe a MaxPool."""
        source = self._operand(self.block.source)
        pooled = self.writer.op("MaxPool", source, **self.block.windows[0].attributes)
        result = self.writer.op("Transpose", pooled, perm=TO_NHWC)
        self._result(result, self._nhwc(self.block.output))
        return self._described()
