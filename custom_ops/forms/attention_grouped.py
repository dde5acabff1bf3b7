"""Reading a region as GroupQueryAttention over a cache: where its rows come from and go to."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent, extent_of
from ortkit.refusal import Refused, needed, refusals

from ..tvm.tile.registers import VECTOR
from .attention_cpu import AttentionForm, Heads
from .body import Body, integer

# Wider heads would need more scratch than a thread's stack should hold: 133 KB for these.
_MOST_WIDTH = 256
# Rotated columns are computed in vectors of this many.
_ROTATED = 8
# Attributes that are read; any other has to be as these say: what it does by default.
_READ = frozenset(
    {
        "do_rotary",
        "kv_num_heads",
        "local_window_size",
        "num_heads",
        "rotary_interleaved",
        "scale",
        "softcap",
    }
)
_DEFAULTS = {
    "causal": (1,), "k_quant_type": (b"NONE",), "qk_output": (0,), "sliding_window_cache": (0,),
    "smooth_softmax": (0, -1), "v_quant_type": (b"NONE",),
}  # fmt: skip
_OPTIONAL = ("qk_norm_epsilon",)
_EPSILON = 1e-6
#: Inputs that not every kernel takes: a number of each head that counts as one more score; norms
#: of the rows of Q and K.
_TABLES = 7, 8
_SINK, _NORMS = 11, (14, 15)
_INPUTS = 16


@dataclass(frozen=True)
class Rotation:
    """Tables of a rotary embedding.

    Args:
        cos: The input float32 [positions, half].
        sin: Likewise.
        positions: How many there are.
        half: Half of the columns that are rotated; the others stay.
        is_interleaved: Whether neighbouring columns are rotated with each other, instead of those
            that lie `half` apart.
    """

    cos: int
    sin: int
    positions: Extent
    half: int
    is_interleaved: bool = False


@dataclass(frozen=True)
class RowNorms:
    """RMS norms of each head's rows of Q and K, before they are rotated.

    Args:
        q: The input [width] that rows of Q are multiplied by.
        k: The same of K.
        epsilon: Added to the mean of squares.
    """

    q: int
    k: int
    epsilon: float


@dataclass(frozen=True)
class GroupedForm:
    """softmax(scale Q K^T) V of new rows over a cache that gets them.

    Args:
        attention: What is computed; its K and V are the outputs that hold the cache.
        k: Where the new keys lie.
        v: Where the new values lie.
        past: The inputs with the cache before: keys, values.
        lengths: The input int32 [batch]: keys of each sample, its new ones included, less one.
        total: The input int32 of one element: the most keys of a sample.
        rotation: None for none.
        window: How many keys a query sees, its own among them; 0: all.
        softcap: Scores become softcap tanh(score / softcap); 0: they stay.
        sink: The input [heads] whose exponentials are added to the sums of weights; None for none.
        norms: None for none.
    """

    attention: AttentionForm
    k: Heads
    v: Heads
    past: tuple[int, int]
    lengths: int
    total: int
    rotation: Rotation | None
    window: int
    softcap: float
    sink: int | None = None
    norms: RowNorms | None = None

    @property
    def share(self) -> int:
        """Heads of Q for each of K and V."""
        return self.attention.q.heads // self.attention.k.heads


@refusals
def read_grouped(
    signature: RegionSignature, dtypes: Collection[str] = ("float32",), *, takes_more: bool = False
) -> GroupedForm | Refused | None:
    """Return the region as one GroupQueryAttention; None if it is something else.

    Args:
        signature: The region's.
        dtypes: The types that there are kernels for.
        takes_more: Whether kernels take sinks, and norms of Q and K.
    """
    body = Body(signature)
    nodes = body.nodes("GroupQueryAttention", "com.microsoft")
    if not nodes:
        return None
    node, *others = nodes
    if others or len(body.function.node) > 1 or list(node.output) != list(body.function.output):
        return Refused("more than one attention, or not all of its results")
    if refused := _misfit(body, node, dtypes, takes_more=takes_more):
        return refused
    inputs = [body.inputs.get(name) for name in [*node.input, *[""] * _INPUTS][:_INPUTS]]
    q, past_k, past_v, lengths, total = (inputs[at] for at in (0, 3, 4, 5, 6))
    if q is None or past_k is None or past_v is None or lengths is None or total is None:
        return Refused("attention without a cache, or without lengths")
    heads = integer(node, "num_heads", 0), integer(node, "kv_num_heads", 0)
    new_q, new_k, new_v = needed(_rows(body, heads, (q, inputs[1], inputs[2])))
    if refused := _other_caches(signature, (past_k, past_v), new_k):
        return refused
    rotation = needed(_rotation(body, node, new_q.width))
    first = len(signature.inputs)
    k, v = (
        Heads(first + 1 + n, True, new_k.heads, new_k.width, new_k.batch,
              extent_of(spec.shape[2]), new_k.width)
        for n, spec in enumerate(signature.outputs[1:])
    )  # fmt: skip
    numbers = {each.name: float(each.f) for each in node.attribute}
    scale, softcap = numbers.get("scale", 0.0), numbers.get("softcap", 0.0)
    if not (isfinite(scale) and isfinite(softcap) and softcap >= 0.0):
        return Refused("attention with a scale or a softcap that is none")
    scale = scale or 1.0 / sqrt(new_q.width)
    attention = AttentionForm(signature, new_q, k, v, None, scale, is_causal=True)
    window = max(0, integer(node, "local_window_size", -1))
    sink, norms = needed(_more(signature, inputs, new_q, numbers))
    return GroupedForm(
        attention, new_k, new_v, (past_k, past_v), lengths, total, rotation, window, softcap,
        sink, norms,
    )  # fmt: skip


def _more(
    signature: RegionSignature, inputs: Sequence[int | None], q: Heads, numbers: dict[str, float]
) -> tuple[int | None, RowNorms | None] | Refused:
    """Return the sink and the norms, which are of the sizes that a kernel reads."""
    sink, norms = inputs[_SINK], [inputs[at] for at in _NORMS]
    wanted = (sink, q.heads), *((at, q.width) for at in norms)
    for at, size in wanted:
        if at is not None and signature.inputs[at].shape != (size,):
            return Refused("attention whose sinks or norms are of other sizes")
    first, second = norms
    if first is None or second is None:
        return sink, None
    return sink, RowNorms(first, second, numbers.get("qk_norm_epsilon", _EPSILON))


def _misfit(
    body: Body, node: onnx.NodeProto, dtypes: Collection[str], *, takes_more: bool
) -> Refused | None:
    """Say what the operator does that no kernel does, and which types there are no kernels for."""
    taken = {_SINK, *_NORMS} if takes_more else set()
    more = {at: name for at, name in enumerate(node.input) if at > _TABLES[-1] and name}
    if more.keys() - taken:
        return Refused("attention with places, a bias, sinks, scales or norms of its own")
    if len(node.output) != 3:
        return Refused("attention without caches as results, or with scores")
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.name in (*_READ, *_OPTIONAL):
            continue
        if value not in _DEFAULTS.get(attribute.name, ()):
            return Refused(f"attention with attribute {attribute.name!r}")
    if any(name not in body.inputs for name in more.values()):
        return Refused("attention with sinks or norms that are computed in the region")
    if (_NORMS[0] in more) != (_NORMS[1] in more):
        return Refused("attention with a norm of Q or K alone")
    names = {name for name in (*node.input[:5], *node.input[7:9], *more.values()) if name}
    specs = [body.signature.inputs[body.inputs[name]] for name in names if name in body.inputs]
    found = {spec.dtype for spec in (*specs, *body.signature.outputs)}
    if len(found) != 1 or not found <= set(dtypes):
        return Refused(f"attention of something else than {' or '.join(dtypes)}")
    return None


def _rows(
    body: Body, heads: tuple[int, int], tensors: tuple[int, int | None, int | None]
) -> tuple[Heads, Heads, Heads] | Refused:
    """Return where the new rows of Q, K and V lie: in one tensor, or in one each."""
    (count, kv_count), (q, k, v) = heads, tensors
    shapes = [None if at is None else body.signature.inputs[at].shape for at in tensors]
    first = shapes[0]
    if first is None or count < 1 or kv_count < 1 or count % kv_count:
        return Refused("attention of heads that do not fit each other")
    is_packed = k is None and v is None
    parts = count + 2 * kv_count if is_packed else count
    if len(first) != 3 or not isinstance(first[2], int) or first[2] % parts:
        return Refused("attention of columns that are no whole heads")
    width, pitch = first[2] // parts, first[2]
    if width % VECTOR or not 0 < width <= _MOST_WIDTH:
        return Refused(
            f"attention of heads of {width}, no multiple of {VECTOR} up to {_MOST_WIDTH}"
        )
    batch, length = extent_of(first[0]), extent_of(first[1])
    if is_packed:
        starts = 0, count * width, (count + kv_count) * width
        return (
            Heads(q, False, count, width, batch, length, pitch, starts[0]),
            Heads(q, False, kv_count, width, batch, length, pitch, starts[1]),
            Heads(q, False, kv_count, width, batch, length, pitch, starts[2]),
        )
    wanted = (*first[:2], kv_count * width)
    if k is None or v is None or any(shape != wanted for shape in shapes[1:]):
        return Refused("attention whose operands are not known to have equal sizes")
    return (
        Heads(q, False, count, width, batch, length, pitch),
        Heads(k, False, kv_count, width, batch, length, kv_count * width),
        Heads(v, False, kv_count, width, batch, length, kv_count * width),
    )


def _other_caches(signature: RegionSignature, past: tuple[int, int], new: Heads) -> Refused | None:
    """Say whether caches are of other shapes than a kernel can tell in a run."""
    shapes = [signature.inputs[at].shape for at in past]
    made = [spec.shape for spec in signature.outputs[1:]]
    if shapes[0] != shapes[1] or len(shapes[0]) != 4:
        return Refused("attention whose caches differ")
    batch, heads, _, width = shapes[0]
    if extent_of(batch) != new.batch or heads != new.heads:
        return Refused("attention whose caches are not known to fit")
    if isinstance(width, int) and width != new.width:
        return Refused("attention whose caches have heads of another width")
    wanted = signature.inputs[new.tensor].shape[0], new.heads, new.width
    if any((each[0], each[1], each[3]) != wanted for each in made):
        return Refused("attention whose new caches are not known to fit")
    return None


def _rotation(body: Body, node: onnx.NodeProto, width: int) -> Rotation | Refused | None:
    if not integer(node, "do_rotary", 0):
        return None
    tables = [body.inputs.get(name) for name in [*node.input, *[""] * 9][7:9]]
    cos, sin = tables
    if cos is None or sin is None:
        return Refused("attention whose tables of angles are computed in the region")
    shape = body.signature.inputs[cos].shape
    half = shape[-1]
    if shape != body.signature.inputs[sin].shape or len(shape) != 2 or not isinstance(half, int):
        return Refused("attention with tables of angles of unknown size")
    if half % _ROTATED or not 0 < 2 * half <= width:
        return Refused(f"attention that rotates {2 * half} columns of {width}")
    is_interleaved = integer(node, "rotary_interleaved", 0) == 1
    return Rotation(cos, sin, extent_of(shape[0]), half, is_interleaved)
