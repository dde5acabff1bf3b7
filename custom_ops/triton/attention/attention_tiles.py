"""Blocks of queries and keys, warps and stages, by what was measured.

On an H100, float16, batch 1, 8 to 16 heads, 512 to 8,192 queries and keys (2026-11): those below
were the fastest, or within 3 percent of it. Few registers decide where heads are narrow, as more
blocks then run side by side; on Hopper, how many blocks there are for its multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.kernels.cuda import Condition
from ortkit.kernels.sizes import Extent

from ...forms.attention_cuda import AttentionForm, Heads

MULTIPROCESSORS = 132
#: Wider heads fill the registers of more than two groups.
_NARROW = 64
#: Of heads up to this width there are no copies.
LEAST_WIDTH = 16
#: Bytes that addresses of copies are multiples of, and elements of operands that are as many.
_ADDRESS, _VECTOR = 16, 8
#: Where large blocks were measured.
_MEASURED = (90,)
#: Keys from which on copies of boxes are ahead where a bias is added: 512 of a BERT take 9.2 us
#: with them and 6.6 without, 197 of a vision transformer 5.5 and 4.1; without a bias 1,024 save 3.
_LEAST_BIASED = 1024


@dataclass(frozen=True)
class Tile:
    """One way to cut an attention.

    Args:
        queries: Of a block.
        keys: Of a block.
        warps: Of 32 threads.
        stages: How many blocks of keys are loaded ahead, as Triton counts them.
        registers: That a thread may have; None for what Triton finds.
        conditions: When it is the fastest.
        architectures: Those that it is for; None for all.
        is_optional: Whether a later one does where it is missing.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None
    conditions: tuple[Condition, ...] = ()
    architectures: tuple[int, ...] | None = None
    is_optional: bool = False

    def __post_init__(self) -> None:
        """Hold what Triton asks of a block: powers of two."""
        assert self.queries.bit_count() == self.keys.bit_count() == 1


@dataclass(frozen=True)
class HopperTile:
    """One way to cut an attention for `attention_hopper_kernel`.

    Args:
        groups: Of four warps that compute, each 64 queries.
        keys: Of a block.
        stages: Blocks of keys and values that there is room for.
        registers: Of a thread that computes.
        in_turn: Whether groups alternate on the tensor cores.
        limit: Registers that a thread may have at first, for several blocks side by side; None
            for what Triton finds.
        conditions: When it is the fastest.
    """

    groups: int
    keys: int
    stages: int
    registers: int
    in_turn: bool = False
    limit: int | None = None
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        """Hold what Gluon asks of a block: a power of two."""
        assert self.keys.bit_count() == 1


@dataclass(frozen=True)
class _Class:
    """The tiles for heads up to a width.

    Args:
        width: The most.
        plain: Without a mask, or with one of keys.
        causal: With causality.
        masked: With a mask for each query.
        small: What any GPU has the shared memory for.
    """

    width: int
    plain: Tile
    causal: Tile
    masked: Tile
    small: Tile


_CLASSES = (
    _Class(32, Tile(64, 128, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)),
    _Class(
        64, Tile(64, 128, 4, 2), Tile(64, 128, 4, 2, 168), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)
    ),
    _Class(96, Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
    _Class(128, Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2)),
    _Class(256, Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 2), Tile(64, 32, 4, 2)),
)
#: Rows of all heads up to which blocks of 64 queries are at most one for each multiprocessor of an
#: H100: with larger ones some of them would be idle.
_FEW_ROWS = 64 * MULTIPROCESSORS
#: Of narrow heads two blocks of one group are side by side on a multiprocessor, or one of three;
#: what all multiprocessors do at once then takes longer, by this factor (27.7 and 20 us with 2,048
#: keys). So it is the number of such rounds that decides.
_ROUND_OF_ONE, _ROUND_OF_THREE = 2 * 64 * MULTIPROCESSORS, 3 * 64 * MULTIPROCESSORS
_LONGER = 1.385
_ONE = HopperTile(1, 128, 2, 232, limit=128)
#: Where keys are few, blocks are soon done and want a third one beside them: 32 samples of 12
#: heads at 512 positions take 71.4 us with it and 76.5 without, 8 samples 19.2 and 20.8.
_ONE_OF_FEW_KEYS = HopperTile(1, 64, 2, 136, limit=80)
_FEW_KEYS = 512
_ONE_OF_WIDE = HopperTile(1, 64, 2, 232, limit=128)
_TWO, _TWO_OF_WIDEST = HopperTile(2, 128, 2, 240), HopperTile(2, 64, 2, 240)
_THREE = HopperTile(3, 128, 2, 160, in_turn=True)


def tiles_of(form: AttentionForm) -> tuple[Tile | HopperTile, ...]:
    """Return the cuts worth having, the last one for everything and any GPU."""
    width = max(form.q.width, form.v.width)
    found = next(class_ for class_ in _CLASSES if width <= class_.width)
    if takes_form(form):
        return (*_hopper_tiles(form, width), found.small)
    tile = found.plain
    if form.causal is not None:
        tile = found.causal
    elif form.mask is not None and form.mask.by_row:
        tile = found.masked
    return replace(tile, architectures=_MEASURED, is_optional=True), found.small


def _hopper_tiles(form: AttentionForm, width: int) -> tuple[HopperTile, ...]:
    """Return the tiles for ranges of rows, or the one that is for them."""
    if width > 2 * _NARROW:
        return (_TWO_OF_WIDEST,)
    rows = form.q.length * form.q.batch * Extent(form.q.heads)
    if width > _NARROW:
        if rows.static is not None:
            return (_ONE_OF_WIDE if rows.static <= _FEW_ROWS else _TWO,)
        return replace(_ONE_OF_WIDE, conditions=(Condition(rows, at_most=_FEW_ROWS),)), _TWO
    if form.causal is not None:
        # Three groups have no registers for more than the scores.
        return (_ONE,)
    # For a mask of each query they have too few (1.0 to 1.5 times the time of one group), and are
    # taken only where they save a round.
    is_by_row = form.mask is not None and form.mask.by_row
    if rows.static is not None:
        ones, threes = _rounds(form, _ONE), _rounds(form, _THREE)
        keys = form.k.length.static
        if ones > 1 and form.mask is None and keys is not None and keys <= _FEW_KEYS:
            return (_ONE_OF_FEW_KEYS,)
        is_one = ones <= _LONGER * threes or (is_by_row and threes > 1)
        return (_ONE if is_one else _THREE,)
    first, second, third = (
        replace(tile, conditions=(Condition(rows, at_most=most),))
        for tile, most in (
            (_ONE, _ROUND_OF_ONE),
            (_THREE, _ROUND_OF_THREE),
            (_ONE, 2 * _ROUND_OF_ONE),
        )
    )
    if is_by_row:
        return first, second, _ONE
    length = form.k.length
    if form.mask is not None or (length.static is not None and length.static > _FEW_KEYS):
        return first, second, third, _THREE
    few = replace(_ONE_OF_FEW_KEYS, conditions=(Condition(length, at_most=_FEW_KEYS),))
    return first, few, second, third, _THREE


def _rounds(form: AttentionForm, tile: HopperTile) -> int:
    """Return how often all multiprocessors get blocks; all sizes are known."""
    rows = 64 * tile.groups
    blocks = form.q.heads * (form.q.batch.static or 0) * -(-(form.q.length.static or 0) // rows)
    return -(-blocks // (MULTIPROCESSORS * (2 if tile is _ONE else 1)))


def takes_form(form: AttentionForm) -> bool:
    """Say whether copies of boxes reach all operands, and a mask of each query.

    And whether it is the faster one: what is added to the parts of one tensor costs time before
    the first product (`_LEAST_BIASED`).
    """
    keys = form.k.length.static
    if form.bias is not None and (keys is None or keys < _LEAST_BIASED):
        return False
    operands = (form.q, form.k, form.v, form.y)
    is_reached = not any(heads.pitch % _VECTOR or heads.first % _VECTOR for heads in operands)
    boxes = {box_of(operand) for operand in operands}
    is_wide = min(item.width for item in operands) > LEAST_WIDTH
    return is_reached and is_wide and len(boxes) == 1 and _reaches_mask(form)


def _reaches_mask(form: AttentionForm) -> bool:
    """Say whether rows of a mask by query begin where copies may, whatever else a run's sizes are.

    So the number of keys has to be known.
    """
    mask, keys = form.mask, form.k.length.static
    if mask is None or not mask.by_row:
        return True
    is_bytes = form.signature.inputs[mask.tensor].dtype == "bool"
    return keys is not None and keys % (_ADDRESS if is_bytes else _VECTOR) == 0


def box_of(heads: Heads) -> int:
    """Return the width of a box that holds a row of a head."""
    return 1 << (heads.width - 1).bit_length()
