"""What assemblers get wrong, and code that they get right.

Of `add.s16x2` and `add.u16x2` with a constant, the ptxas of CUDA 12.8, 12.9 and 13.0 adds 0 to a
half if the other half of the result is not used; those of 13.1 to 13.4 do not. From sm_90 on LLVM
takes positions of 16 bits in pairs, so that a convolution read the pixel beside its own. Triton
3.9 brings that of 13.4; which one it runs is anybody's to say (`TRITON_PTXAS_BLACKWELL_PATH`).
"""

from __future__ import annotations

import re

#: The first release of CUDA whose ptxas is right.
_RIGHT = (13, 1)
_PAIR = re.compile(r"add\.[su]16x2")
_SUM_OF_PAIRS = re.compile(r"^\s*add\.([su])16x2\s+(%\w+),\s*(%\w+),\s*(%\w+);", re.MULTILINE)
_SUMS = """\
	{{
	.reg .b16 low, high, more, most;
	mov.b32 {{low, high}}, {a};
	mov.b32 {{more, most}}, {b};
	add.{sign}16 low, low, more;
	add.{sign}16 high, high, most;
	mov.b32 {sum}, {{low, high}};
	}}"""


def is_wrong(ptx: str, release: str) -> bool:
    """Say whether PTX has sums that the ptxas of a release of CUDA gets wrong."""
    is_old = tuple(map(int, release.split(".")[:2])) < _RIGHT
    return is_old and _PAIR.search(ptx) is not None


def without_pairs(ptx: str) -> str:
    """Return PTX that adds the halves of pairs of 16 bits one by one."""

    def separated(found: re.Match[str]) -> str:
        sign, total, a, b = found.groups()
        return _SUMS.format(sign=sign, sum=total, a=a, b=b)

    return _SUM_OF_PAIRS.sub(separated, ptx)
