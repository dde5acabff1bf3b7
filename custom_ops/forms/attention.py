"""Reading a region as attention in standard operators: where Q, K, V and a mask lie.

    softmax(cap * tanh(scale Q K^T / cap) + mask) V

Q, K and V are inputs, [batch, heads, rows, width], or columns of inputs, [batch, rows, columns],
that a Reshape and a Transpose make heads of; heads of K and V may be repeated. A mask is added, or
chooses with `Where` between a score and -inf; causality and windows are Trilus of ones.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import onnx

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.refusal import Refused, RefusedError, refusals

from .attention_cuda import AttentionForm, Cache, Causal, Heads, Mask
from .body import Body, integer, integers

_HEADS_LAST, _LAST_TWO = (0, 2, 1, 3), (0, 1, 3, 2)
#: A cache's rows before batch and heads, and back.
ROWS_FIRST, ROWS_BACK = (2, 0, 1, 3), (1, 2, 0, 3)
_TYPES = ("float16", "bfloat16")


class _NotAttentionError(Exception):
    """The region is no attention of this form."""


@refusals
def read_attention(signature: RegionSignature) -> AttentionForm | Refused | None:
    """Return the region as one attention; None if it is something else."""
    if "Softmax" not in signature.body or "MatMul" not in signature.body:
        return None
    reader = _Reader(Body(signature))
    try:
        return reader.read()
    except _NotAttentionError:
        return None


class _Reader:
    """From the result back to the inputs."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._signature = body.signature
        self._biases: list[int | None] = []
        self._caches: list[Cache] = []

    def read(self) -> AttentionForm:
        body, signature = self._body, self._signature
        if len(body.function.output) not in (1, 3) or len(body.nodes("Softmax")) != 1:
            raise _NotAttentionError
        y, product = self._result(body.function.output[-1])
        weighted = self._node(product, "MatMul")
        softmax = self._softmax(weighted.input[0])
        if integer(softmax, "axis", -1) not in (-1, 3):
            raise _NotAttentionError
        v = self._heads(weighted.input[1])
        scores, causal, mask, softcap = self._masks(softmax.input[0])
        score = self._node(scores, "MatMul")
        scaled = self._node(score.input[0], "Mul")
        q = self._heads(scaled.input[0])
        k = self._heads(self._transposed(score.input[1], _LAST_TWO))
        scale = self._number(scaled.input[1])
        caches = self._both_caches(k, v)
        mask_found = None if mask is None else self._mask(mask, q, self._keys(k, caches))
        self._check(q, k, v, scale, softcap)
        index = len(signature.inputs) + len(signature.outputs) - 1
        pitch = v.width if y else q.heads * v.width
        made = Heads(index, y, q.heads, v.width, q.batch, q.length, pitch)
        bias = self._biases[0] if self._biases else None
        if bias is not None:
            # A bound of the scores is not moved as they are by what is added to keys.
            if softcap or self._biases != [bias] * 3 or len({q.tensor, k.tensor, v.tensor}) > 1:
                raise RefusedError("attention of parts with a bias, and a bound of its scores")
        elif any(one is not None for one in self._biases):
            raise RefusedError("attention of parts of which some have a bias")
        return AttentionForm(
            signature, q, k, v, made, mask_found, scale, softcap, causal, bias, caches
        )

    # ---- nodes

    def _softmax(self, name: str) -> onnx.NodeProto:
        """Return a Softmax; the kernel gives 0 where it gives NaN, which may be written, too."""
        where = self._body.producer(name, "Where")
        if where is None:
            return self._node(name, "Softmax")
        test, zero, shares = where.input
        if self._node(test, "IsNaN").input[0] != shares or self._number(zero) != 0.0:
            raise _NotAttentionError
        return self._node(shares, "Softmax")

    def _node(self, name: str, op_type: str) -> onnx.NodeProto:
        node = self._body.producer(name, op_type)
        if node is None:
            raise _NotAttentionError
        return node

    def _number(self, name: str) -> float:
        number = self._body.number(name)
        if number is None:
            raise _NotAttentionError
        return number

    def _transposed(self, name: str, perm: tuple[int, ...]) -> str:
        node = self._node(name, "Transpose")
        if integers(node, "perm", ()) != perm:
            raise _NotAttentionError
        return str(node.input[0])

    def _target(self, reshape: onnx.NodeProto) -> tuple[int, ...]:
        array = self._body.constant(reshape.input[1])
        if array is None or integer(reshape, "allowzero", 0):
            raise _NotAttentionError
        return tuple(int(size) for size in array.flat)

    def _shape(self, tensor: int | None) -> tuple[int | str, ...]:
        return () if tensor is None else self._signature.inputs[tensor].shape

    # ---- operands

    def _result(self, name: str) -> tuple[bool, str]:
        """Return whether the result is stacked, and the product that it is."""
        reshape = self._body.producer(name, "Reshape")
        if reshape is None:
            return True, name
        target = self._target(reshape)
        if len(target) == 3 and target[:2] == (-1, 1):
            return True, reshape.input[0]
        if len(target) != 3 or target[:2] != (0, 0):
            raise _NotAttentionError
        return False, self._transposed(reshape.input[0], _HEADS_LAST)

    def _heads(self, name: str) -> Heads:
        if name in self._body.inputs:
            return self._stacked(self._body.inputs[name])
        reshape = self._body.producer(name, "Reshape")
        if reshape is not None:
            return self._one_row(reshape) or self._repeated(reshape)
        concat = self._body.producer(name, "Concat")
        if concat is not None:
            return self._appended(concat)
        back = self._body.producer(name, "Transpose")
        if back is not None and integers(back, "perm", ()) == ROWS_BACK:
            return self._written(back)
        reshape = self._node(self._transposed(name, _HEADS_LAST), "Reshape")
        target = self._target(reshape)
        if len(target) != 4 or target[:2] != (0, 0) or min(target[2:]) < 1:
            raise _NotAttentionError
        return self._columns(reshape.input[0], target[2], target[3])

    def _stacked(self, tensor: int) -> Heads:
        shape = self._signature.inputs[tensor].shape
        if len(shape) != 4:
            raise _NotAttentionError
        batch, heads, rows, width = shape
        if not isinstance(heads, int) or not isinstance(width, int):
            raise RefusedError("attention of heads whose number or width is not known")
        return Heads(tensor, True, heads, width, extent_of(batch), extent_of(rows), width)

    def _one_row(self, reshape: onnx.NodeProto) -> Heads | None:
        """Read heads of one row each, [..., width], which lie like stacked ones."""
        target, tensor = self._target(reshape), self._body.inputs.get(reshape.input[0])
        if tensor is None or len(target) != 4 or (target[0], target[2]) != (-1, 1):
            return None
        _, heads, _, width = target
        elements = product(map(extent_of, self._shape(tensor)))
        batch = elements.divided_by(Extent(heads * width)) if heads * width > 0 else None
        if batch is None:
            raise _NotAttentionError
        return Heads(tensor, True, heads, width, batch, ONE, width)

    def _repeated(self, reshape: onnx.NodeProto) -> Heads:
        """Read heads each of which stands several times in a row: the kernel shares them."""
        tile = self._node(reshape.input[0], "Tile")
        unsqueeze = self._node(tile.input[0], "Unsqueeze")
        times, target = self._body.constant(tile.input[1]), self._target(reshape)
        found = self._heads(unsqueeze.input[0])
        if times is None or self._body.axes(unsqueeze) != (2,) or times.size != 5:
            raise _NotAttentionError
        count = int(times[2])
        if times.tolist() != [1, 1, count, 1, 1] or target != (
            0, found.heads * count, -1, found.width,
        ):  # fmt: skip
            raise _NotAttentionError
        return found

    def _appended(self, concat: onnx.NodeProto) -> Heads:
        """Read rows after a cache; those of the values come first."""
        made = list(self._body.function.output)
        past = self._body.inputs.get(concat.input[0])
        if len(concat.input) != 2 or integer(concat, "axis", 0) != 2 or past is None:
            raise _NotAttentionError
        if concat.output[0] not in made:
            raise _NotAttentionError
        shape = self._shape(past)
        present = len(self._signature.inputs) + made.index(concat.output[0])
        if len(shape) != 4:
            raise _NotAttentionError
        self._caches.append(Cache(past, present, extent_of(shape[2])))
        return self._heads(concat.input[1])

    def _written(self, back: onnx.NodeProto) -> Heads:
        """Read a row that is written into a cache: [1, batch, heads, width]."""
        made = list(self._body.function.output)
        scatter = self._node(back.input[0], "ScatterND")
        transposed, place, new = scatter.input
        past, at, row = map(
            self._body.inputs.get, (self._transposed(transposed, ROWS_FIRST), place, new)
        )
        if past is None or at is None or row is None or back.output[0] not in made:
            raise _NotAttentionError
        shape, rows = self._shape(past), self._shape(row)
        if len(shape) != 4 or rows != (1, shape[0], shape[1], shape[3]):
            raise _NotAttentionError
        if self._shape(at) != (1, 1) or self._signature.inputs[at].dtype != "int64":
            raise _NotAttentionError
        present = len(self._signature.inputs) + made.index(back.output[0])
        self._caches.append(Cache(past, present, extent_of(shape[2]), at))
        found = self._stacked(past)
        return replace(found, tensor=row, length=ONE)

    def _both_caches(self, k: Heads, v: Heads) -> tuple[Cache, Cache] | None:
        """Return those of keys and values, with shapes that fit the new rows."""
        if not self._caches and len(self._signature.outputs) == 1:
            return None
        if len(self._caches) != 2 or len(self._signature.outputs) != 3:
            raise _NotAttentionError
        of_values, of_keys = self._caches
        tensors = (*self._signature.inputs, *self._signature.outputs)
        for cache, new in ((of_keys, k), (of_values, v)):
            for spec in (tensors[cache.past], tensors[cache.present]):
                batch, heads, _, width = spec.shape
                if (extent_of(batch), heads, width) != (new.batch, new.heads, new.width):
                    raise RefusedError("attention with a cache not known to be of its heads")
                if spec.dtype != tensors[new.tensor].dtype:
                    raise RefusedError(f"attention with a cache of {spec.dtype}")
        if (of_keys.rows, of_keys.at) != (of_values.rows, of_values.at):
            raise RefusedError("attention with caches not known to be of one length")
        return of_keys, of_values

    def _keys(self, k: Heads, caches: tuple[Cache, Cache] | None) -> Extent:
        """Return how many keys there are, the cached ones included."""
        if caches is None:
            return k.length
        present = self._signature.outputs[caches[0].present - len(self._signature.inputs)]
        return extent_of(present.shape[2])

    def _columns(self, name: str, heads: int, width: int) -> Heads:
        """Read a row's columns: an input's, or a part of them."""
        first, count = 0, heads * width
        split = self._body.producer(name, "Split")
        if split is not None:
            whole = self._without_bias(split.input[0])
            first, count = self._part(split, name, whole)
            name = whole
        tensor = self._body.inputs.get(name)
        shape = self._shape(tensor)
        if tensor is None or len(shape) != 3:
            raise _NotAttentionError
        if not isinstance(shape[2], int):
            raise RefusedError("attention of rows whose length is not known")
        if count != heads * width or first + count > shape[2]:
            raise _NotAttentionError
        batch, rows = extent_of(shape[0]), extent_of(shape[1])
        return Heads(tensor, False, heads, width, batch, rows, shape[2], first)

    def _without_bias(self, name: str) -> str:
        """Return what a row is added to, and keep which; or the name itself."""
        add = self._body.producer(name, "Add")
        if add is None:
            self._biases.append(None)
            return name
        bias = self._body.inputs.get(add.input[1])
        rows, row = self._shape(self._body.inputs.get(add.input[0])), self._shape(bias)
        if len(rows) != 3 or row != rows[2:]:
            raise _NotAttentionError
        self._biases.append(bias)
        return str(add.input[0])

    def _part(self, split: onnx.NodeProto, name: str, whole: str) -> tuple[int, int]:
        tensor = self._body.inputs.get(whole)
        shape = self._shape(tensor)
        if len(shape) != 3 or not isinstance(shape[2], int):
            raise _NotAttentionError
        if integer(split, "axis", 0) not in (2, -1):
            raise _NotAttentionError
        sizes = self._body.split_sizes(split, shape[2])
        if sizes is None:
            raise _NotAttentionError
        part = list(split.output).index(name)
        return sum(sizes[:part]), sizes[part]

    # ---- scores

    def _masks(
        self, name: str
    ) -> tuple[str, Causal | None, tuple[str, float | None] | None, float]:
        """Return the scores, and what is done to them: causality, a mask, a cap.

        A mask is a value and, if it is a condition, what is added where it does not hold.
        """
        causal: Causal | None = None
        mask: tuple[str, float | None] | None = None
        softcap = 0.0
        where = self._body.producer(name, "Where")
        if where is not None and (found := self._causal(where.input[0])) is not None:
            if self._number(where.input[2]) != -inf:
                raise _NotAttentionError
            causal, name = found, where.input[1]
            where = self._body.producer(name, "Where")
        if where is not None:
            if self._number(where.input[2]) != -inf:
                raise _NotAttentionError
            mask, name = (where.input[0], -inf), where.input[1]
        add = self._body.producer(name, "Add")
        if add is not None:
            if mask is not None:
                raise _NotAttentionError
            mask, name = self._added(add.input[1]), add.input[0]
        capped = self._body.producer(name, "Mul")
        if capped is not None:
            softcap = self._number(capped.input[1])
            bent = self._node(self._node(capped.input[0], "Tanh").input[0], "Div")
            if self._number(bent.input[1]) != softcap or not softcap > 0:
                raise _NotAttentionError
            name = bent.input[0]
        return name, causal, mask, softcap

    def _added(self, name: str) -> tuple[str, float | None]:
        """Read what is added: numbers, or a choice between 0 and another one."""
        where = self._body.producer(name, "Where")
        if where is None:
            return name, None
        if self._number(where.input[1]) != 0.0:
            raise _NotAttentionError
        return where.input[0], self._number(where.input[2])

    def _causal(self, name: str) -> Causal | None:
        """Read a condition as places up to the query's; None if it is something else."""
        both = self._body.producer(name, "And")
        if both is None:
            found = self._lower(name)
            return None if found is None or found[1] else Causal(found[0])
        outside = self._body.producer(both.input[1], "Not")
        if outside is None:
            return None
        upto, beyond = self._lower(both.input[0]), self._lower(outside.input[0])
        if upto is None or beyond is None or upto[0] != beyond[0] or upto[1] or beyond[1] >= 0:
            return None
        return Causal(upto[0], -beyond[1])

    def _lower(self, name: str) -> tuple[bool, int] | None:
        """Read a Trilu of ones: whether the last row is whole, and by how much it is moved."""
        trilu = self._body.producer(name, "Trilu")
        if trilu is None or integer(trilu, "upper", 1):
            return None
        ones = self._node(trilu.input[0], "ConstantOfShape")
        value = onnx.helper.get_attribute_value(ones.attribute[0]) if ones.attribute else None
        if not isinstance(value, onnx.TensorProto) or not onnx.numpy_helper.to_array(value).all():
            raise _NotAttentionError
        if len(trilu.input) < 2 or not trilu.input[1]:
            return False, 0
        if self._body.constant(trilu.input[1]) is not None:
            return False, int(self._number(trilu.input[1]))
        name, offset = trilu.input[1], 0
        add = self._body.producer(name, "Add")
        if add is not None:
            name, offset = add.input[0], int(self._number(add.input[1]))
        # keys - queries, as the ones have their sizes
        difference = self._node(self._node(name, "Squeeze").input[0], "Sub")
        sizes = self._node(ones.input[0], "Concat")
        if list(sizes.input) != [difference.input[1], difference.input[0]]:
            raise _NotAttentionError
        return True, offset

    def _mask(self, found: tuple[str, float | None], q: Heads, all_keys: Extent) -> Mask:
        name, fill = found
        cast = self._body.producer(name, "Cast")
        if cast is not None and fill is not None:
            name = cast.input[0]
        unsqueeze = self._body.producer(name, "Unsqueeze")
        is_of_keys = unsqueeze is not None and self._body.axes(unsqueeze) == (1, 2)
        if is_of_keys:
            assert unsqueeze is not None
            name = unsqueeze.input[0]
            cast = self._body.producer(name, "Cast")
            name = name if cast is None or fill is None else cast.input[0]
        tensor = self._body.inputs.get(name)
        if tensor is None:
            raise _NotAttentionError
        spec = self._signature.inputs[tensor]
        shape = [extent_of(dim) for dim in spec.shape]
        if is_of_keys:
            if len(shape) != 2:
                raise _NotAttentionError
            shape = [shape[0], ONE, ONE, shape[1]]
        if len(shape) > 4 or len(shape) < 2:
            raise RefusedError("attention with a mask of another rank")
        batch, heads, rows, keys = [ONE, ONE, *shape][-4:]
        if keys != all_keys or rows not in (ONE, q.length):
            raise RefusedError("attention with a mask that is not known to be of queries and keys")
        if batch not in (ONE, q.batch) or heads not in (ONE, Extent(q.heads)):
            raise RefusedError("attention with a mask of another number of samples or heads")
        own = self._signature.inputs[q.tensor].dtype
        if spec.dtype not in (("bool", "int32") if fill is not None else (own,)):
            raise RefusedError(f"attention with a mask of {spec.dtype}")
        return Mask(tensor, fill, rows != ONE, batch != ONE, heads != ONE)

    def _check(self, q: Heads, k: Heads, v: Heads, scale: float, softcap: float) -> None:
        dtypes = {self._signature.inputs[one.tensor].dtype for one in (q, k, v)}
        dtypes.add(self._signature.outputs[0].dtype)
        if len(dtypes) > 1 or not dtypes <= set(_TYPES):
            raise RefusedError(f"attention of {' and '.join(sorted(dtypes))}")
        if len({one.stacked for one in (q, k, v)}) > 1:
            raise RefusedError("attention of operands of different rank")
        if k.heads < 1 or q.heads % k.heads or k.heads != v.heads or q.width != k.width:
            raise RefusedError("attention of heads that do not fit each other")
        if not q.batch == k.batch == v.batch or k.length != v.length:
            raise RefusedError("attention whose operands are not known to have equal sizes")
        if not 0.0 < scale < inf or not 0.0 <= softcap < inf:
            raise RefusedError("attention with a scale that is no positive number")
