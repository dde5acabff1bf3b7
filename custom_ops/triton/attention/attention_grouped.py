"""GroupQueryAttention over caches on CUDA: a token's keys between blocks, and prompts in blocks.

Which of both a run is tells the number of new rows. Lengths stay on the device, so that a graph
that was captured for a token takes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.cuda import Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.kernels.triton.hand import (
    Call,
    Passed,
    Scratch,
    Size,
    Tensor,
    hand_variant,
    kernel_text,
)
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

from ...forms.attention_grouped import GroupedForm, read_grouped
from .attention_arguments import MOST_ELEMENTS, parts_of
from .attention_grouped_hopper import hopper_call, takes_prompts
from .attention_tiles import MULTIPROCESSORS

_DTYPES = "float16", "bfloat16"
_MOST_HEADS = 65535
#: Of each multiprocessor, blocks of a token; parts of a head at most; keys and stages of a part.
_BLOCKS_OF_EACH, _MOST_PARTS = 2, 64
_KEYS, _WARPS, _STAGES = 64, 4, 3
_WIDE, _KEYS_OF_WIDE, _STAGES_OF_WIDE = 128, 32, 2
#: Heads that share keys, as many as a block of the tensor cores takes.
_LEAST_ROWS, _MOST_SHARED = 16, 64
_JOINING_WARPS = 4
#: Rows of a block that appends, and of one that carries old rows over.
_APPENDED, _CARRIED = 32, 64
_FLOAT_BYTES, _HALF_BYTES = 4, 2
_TEXTS = "attention_kernel", "attention_kv_append_kernel", "attention_grouped_kernel"
#: Nanoseconds of a token with 2,048 keys, ONNX Runtime's and ours; on an H200 (2026-11).
_TOKEN_NS = 14_000.0, 8_000.0


@dataclass(frozen=True)
class _Tile:
    """Queries and keys of a block, its warps, and blocks of keys that are loaded ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


#: By the most width of heads: where new rows are few or the GPU is any, and on Hopper.
_SMALL = (64, _Tile(64, 64, 4, 3)), (128, _Tile(64, 64, 4, 2)), (256, _Tile(64, 32, 4, 2))
_LARGE = (64, _Tile(128, 128, 8, 3)), (128, _Tile(128, 64, 8, 3)), (256, _Tile(128, 64, 8, 2))
_HOPPER = (90,)
#: Blocks of `_SMALL` up to which they are ahead: large ones would leave multiprocessors idle.
_FEW_BLOCKS = 2 * MULTIPROCESSORS


@dataclass(frozen=True)
class GroupedAttention:
    """One attention of a region."""

    form: GroupedForm

    def variants(self) -> tuple[VariantSource, ...]:
        """Return the launches of a token, and those of a prompt."""
        new_rows = self.form.attention.q.length
        made: list[VariantSource] = []
        if new_rows.static is None or new_rows.static <= 1:
            made.append(self._token())
        if new_rows.static is None or new_rows.static > 1:
            made += self._prompts()
        return tuple(made)

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of a token, ONNX Runtime's and ours."""
        del level
        return _TOKEN_NS

    # ---- what all launches share
    def _new(self) -> tuple[Passed, ...]:
        """Return the arguments with what is new: Q, K and V."""
        return (Tensor(self.form.attention.q.tensor), Tensor(self.form.k.tensor),
                Tensor(self.form.v.tensor))  # fmt: skip

    def _caches(self) -> tuple[tuple[Passed, ...], tuple[Passed, ...]]:
        """Return the arguments with the caches before, and those after."""
        of = self.form
        return tuple(map(Tensor, of.past)), (
            Tensor(of.attention.k.tensor), Tensor(of.attention.v.tensor),
        )  # fmt: skip

    def _tables(self) -> tuple[Passed, ...]:
        """Return the arguments with tables of angles and weights of norms."""
        turn, norms = self.form.rotation, self.form.norms
        return (
            None if turn is None else Tensor(turn.cos), None if turn is None else Tensor(turn.sin),
            None if norms is None else Tensor(norms.q), None if norms is None else Tensor(norms.k),
        )  # fmt: skip

    def _sizes(self) -> tuple[Passed, ...]:
        """Return new rows, elements of a head of the caches before, and rows of those after."""
        of, past = self.form, self.form.attention.signature.inputs[self.form.past[0]].shape
        elements = extent_of(past[2]) * extent_of(past[3])
        return Size(of.attention.q.length), Size(elements), Size(of.attention.k.length)

    def _positions(self) -> Passed:
        turn = self.form.rotation
        return 1 if turn is None else Size(turn.positions)

    def _rotation(self) -> tuple[Passed, ...]:
        turn, norms = self.form.rotation, self.form.norms
        half, pairs = (0, False) if turn is None else (turn.half, turn.is_interleaved)
        return half, pairs, 0.0 if norms is None else norms.epsilon

    def _layout(self) -> tuple[Passed, ...]:
        """Return heads, widths, and where the heads of Q, K and V begin."""
        of, q = self.form, self.form.attention.q
        lies = [item for heads in (q, of.k, of.v) for item in (heads.pitch, heads.first)]
        return q.heads, of.share, q.width, self._power(), *lies

    def _power(self) -> int:
        return max(16, 1 << (self.form.attention.q.width - 1).bit_length())

    def _conditions(self) -> tuple[Condition, ...]:
        """Return what must hold for positions of 32 bits, and the width of the caches before."""
        of, width = self.form, self.form.attention.q.width
        past = of.attention.signature.inputs[of.past[0]].shape
        found = [Condition(of.attention.k.length, at_most=MOST_ELEMENTS // width)]
        if isinstance(past[3], str):
            # A width of 0 is that of caches without an element.
            found.append(Condition(extent_of(past[3]), divisible_by=width, at_most=width))
        return tuple(found)

    # ---- one new row
    def _token(self) -> VariantSource:
        of, q = self.form, self.form.attention.q
        kv_heads, power = self.form.k.heads, self._power()
        rows = max(_LEAST_ROWS, 1 << (of.share - 1).bit_length())
        is_wide = power > _WIDE
        keys, stages = (_KEYS_OF_WIDE, _STAGES_OF_WIDE) if is_wide else (_KEYS, _STAGES)
        parts, heads = 1, kv_heads * (q.batch.static or 1)
        while 2 * parts * heads <= MULTIPROCESSORS * _BLOCKS_OF_EACH and parts < _MOST_PARTS:
            parts *= 2
        each = q.batch * Extent(kv_heads * parts * rows * _FLOAT_BYTES)
        blocks = Scratch(0, "float32"), Scratch(1, "float32"), Scratch(2, "float32")
        (before, after), (cos, sin, *weights) = self._caches(), self._tables()
        part = Call(
            "grouped_part",
            (
                *self._new(), *before, Tensor(of.lengths), cos, sin, *weights, *after, *blocks,
                *self._sizes(), self._positions(), *self._layout(), *self._rotation(),
                of.attention.scale, of.softcap, of.window, parts, rows, keys,
            ),
            ((Extent(parts), 1), (Extent(kv_heads), 1), (q.batch, 1)), _WARPS, stages,
            # Products behind load their matrices while this attention computes.
            is_light=True,
        )  # fmt: skip
        join = Call(
            "grouped_join",
            (*blocks, self._sink(), self._y(), q.heads, of.share, q.width, power, parts, rows),
            ((q.length * Extent(of.share), 1), (Extent(kv_heads), 1), (q.batch, 1)),
            _JOINING_WARPS,
            # See `attention_join`: which lane's sum is read must make no difference.
            fp_fusion=False,
        )
        one = (Condition(q.length, at_most=1),)
        return hand_variant(
            of.attention.signature, (part, join), "".join(map(kernel_text, _TEXTS)),
            (*one, *self._conditions()), scratch=(each * Extent(power), each, each),
        )  # fmt: skip

    def _sink(self) -> Passed:
        return None if self.form.sink is None else Tensor(self.form.sink)

    def _y(self) -> Tensor:
        return Tensor(len(self.form.attention.signature.inputs))

    # ---- many
    def _prompts(self) -> list[VariantSource]:
        """Return the launches of large blocks on Hopper, where there are many, and of small."""
        q = self.form.attention.q
        small, large = (
            next(tile for width, tile in tiles if self._power() <= width)
            for tiles in (_SMALL, _LARGE)
        )
        few = Extent(q.heads) * q.batch * q.length
        bound = Condition(few, at_most=_FEW_BLOCKS * small.queries)
        if takes_prompts(self.form):
            many = self._prompt(hopper_call(self.form, self._sizes()), self._y())
        else:
            many = self._prompt(self._attend(large), self._rotated())
        plain = self._attend(small)
        return [
            self._prompt(plain, self._rotated(), (bound,)),
            replace(many, architectures=_HOPPER, is_optional=True),
            self._prompt(plain, self._rotated()),
        ]

    def _rotated(self) -> Scratch:
        return Scratch(0, self.form.attention.signature.outputs[0].dtype)

    def _attend(self, tile: _Tile) -> Call:
        """Return the launch that reads rotated rows from scratch memory."""
        of, q = self.form, self.form.attention.q
        return Call(
            "grouped_rows",
            (
                self._rotated(), *self._caches()[1], Tensor(of.lengths), self._sink(), self._y(),
                *self._sizes(), q.heads, of.share, q.width, *parts_of(q.width),
                of.attention.scale, of.softcap, of.window, tile.queries, tile.keys,
            ),
            ((Extent(q.heads), 1), (q.length, tile.queries), (q.batch, 1)), tile.warps,
            tile.stages,
        )  # fmt: skip

    def _prompt(
        self, attend: Call, rotated: Tensor | Scratch, conditions: tuple[Condition, ...] = ()
    ) -> VariantSource:
        """Return the launches of a prompt.

        Args:
            attend: The last one.
            rotated: Where the rotated rows of Q go to.
            conditions: Of sizes, when they may be used.
        """
        of, q = self.form, self.form.attention.q
        kv_heads, batch = of.k.heads, (q.batch, 1)
        sizes = self._sizes()
        (before, after), (cos, sin, *weights) = self._caches(), self._tables()
        carry = Call(
            "grouped_carry",
            (
                *before, Tensor(of.lengths), *after, *sizes, kv_heads, q.width, self._power(),
                _CARRIED,
            ),
            ((of.attention.k.length, _CARRIED), (Extent(kv_heads), 1), batch), 4,
        )  # fmt: skip
        append = Call(
            "grouped_append",
            (
                *self._new(), Tensor(of.lengths), cos, sin, *weights, rotated, *after, *sizes,
                self._positions(), *self._layout(), *self._rotation(), _APPENDED,
            ),
            ((q.length, _APPENDED), (Extent(q.heads + 2 * kv_heads), 1), batch), 4,
        )  # fmt: skip
        pitch = q.heads * q.width
        bound = Condition(q.length, at_most=MOST_ELEMENTS // pitch)
        scratch = (q.batch * q.length * Extent(pitch * _HALF_BYTES),)
        return hand_variant(
            of.attention.signature, (carry, append, attend), "".join(map(kernel_text, _TEXTS)),
            (*conditions, bound, *self._conditions()),
            scratch=scratch if isinstance(rotated, Scratch) else (),
        )  # fmt: skip


def match(signature: RegionSignature) -> GroupedAttention | Refused | None:
    """Return the region as attention over a cache; None if it is something else."""
    form = read_grouped(signature, _DTYPES, takes_more=True)
    if not isinstance(form, GroupedForm):
        return form
    heads = form.attention.q.heads
    if form.share > _MOST_SHARED or heads + 2 * form.k.heads > _MOST_HEADS:
        return Refused(f"attention of more than {_MOST_SHARED} heads that share keys")
    if form.attention.scale <= 0.0:
        return Refused("attention with a scale that is not positive")
    return GroupedAttention(form)


ANCHOR = Anchor(
    "attention", match, (("com.microsoft", "GroupQueryAttention"),), dtype=_DTYPES[0],
    epilogue=frozenset(), batch=NOMINAL_SIZE, in_place=True,
)  # fmt: skip
BFLOAT = replace(ANCHOR, dtype=_DTYPES[1])
