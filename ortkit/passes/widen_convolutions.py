"""widen-convolutions: convolutions over one dimension as ONNX Runtime's blocked ones over two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.analysis.conv1d import line_groups, widen_lines
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe

#: Shorter filters of one channel do not pay for the changes of layout around them.
_LEAST_DEPTHWISE = 5
#: Fewer results are a part of one block of channels.
_LEAST_FILTERS = 8


@dataclass(frozen=True)
class WidenConvolutions(GraphPass):
    """Give sequences a second axis of one element for their convolutions, on the CPU at level 2.

    Before:
        y = Conv(x, W)
    After:
        y = Squeeze(Conv(Unsqueeze(x, 2), W4), 2)

    ONNX Runtime 1.31.1 has its blocked kernels for two dimensions only: with one it copies each
    window, and for one channel at a time if each has its own filter. What follows element by
    element, and the next convolution, come before the Squeeze.

    Skips:
        * Level 3, which has the fewest nodes.
        * Linked convolutions that all have one tap, short filters of one channel, or groups of
          several channels.
        * Other element types than float32, weights that are computed, padding by name.

    Source:
        ONNX Conv-11: an axis of one element under a filter of one changes no sum.
    """

    name: ClassVar[str] = "widen-convolutions"

    def run(self, scope: Scope) -> None:
        if not scope.traits.has_blocked_conv_layout or scope.options.level >= 3:
            return
        chosen: list[ir.Node] = []
        for group in line_groups(scope):
            name, about = group[0].outputs[0].name or "", describe(group[0])
            if not any(_pays(Site(scope, conv, self.name)) for conv in group):
                reason = "no filter of its group is one that blocks of channels are faster for"
                scope.log.miss(self.name, about, reason, (name,))
            elif scope.log.claim(self.name, "plane", name, about):
                chosen += group
        widen_lines(scope, chosen, self.name)


def _pays(site: Site) -> bool:
    """Say whether a convolution is faster in blocks, with a change of layout before and after.

    One thread, ONNX Runtime 1.31.1, AVX-512: filters of one channel over 7 taps 1.9 times, over 31
    4 times, over 3 taps 0.6; of all channels over 3 and 7 taps 1.1 to 1.5, over 1 tap 0.95; groups
    of several channels 1.0.
    """
    sizes = site.shape(site.input(1)) or ()
    filters = [size for size in sizes if isinstance(size, int)]
    if len(filters) != 3:
        return False
    count, _, taps = filters
    channels = (site.shape(site.input(0)) or (0, 0))[1]
    groups = site.int("group", 1)
    if groups == 1:
        return taps > 1 and count >= _LEAST_FILTERS
    return groups == channels == count and taps >= _LEAST_DEPTHWISE
