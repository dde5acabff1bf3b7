"""Reading a region as attention in standard operators: where Q, K, V and a mask lie.

What is computed is guessed from single nodes of the body and written again as an `AttentionBody`:
the region is an attention if it computes the same. Q, K and V are inputs, or columns of inputs,
[batch, rows, columns], that a Split parts, perhaps after a row was added to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal, TypeAlias

import onnx
from onnx import helper

from ortkit.kernels.attention_body import AttentionBody
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, product
from ortkit.refusal import Refused, RefusedError, refusals

from .attention_cuda import AttentionForm, Cache, Causal, Heads, Mask
from .body import Body, integer

_MaskKind: TypeAlias = Literal["", "added", "chosen", "keys"]
_Causality: TypeAlias = Literal["", "first", "last"]
_TYPES = ("float16", "bfloat16")
_MADE = ("keys", "values", "y")


class _NotAttentionError(Exception):
    """The region is no attention of this form."""


@refusals
def read_attention(signature: RegionSignature) -> AttentionForm | Refused | None:
    """Return the region as one attention; None if it is something else."""
    if "Softmax" not in signature.body or "MatMul" not in signature.body:
        return None
    try:
        return _Reader(Body(signature)).read()
    except (_NotAttentionError, IndexError):  # a node with fewer operands than it is read for
        return None


@dataclass(frozen=True)
class _Operand:
    """What Q, K, V or a mask is made of.

    Args:
        name: An input, or a part of a Split.
        target: The first Reshape's; empty if there is none.
        past: The input that rows are appended to, or written into; empty if there is none.
        at: The input that says where; empty if they are appended.
    """

    name: str
    target: tuple[int, ...]
    past: str = ""
    at: str = ""


class _Reader:
    def __init__(self, body: Body) -> None:
        self._body = body
        self._signature = body.signature
        self._biases: list[int | None] = []

    def read(self) -> AttentionForm:
        """Return the attention, if writing it again gives the same body."""
        products, shares = self._body.nodes("MatMul"), self._body.nodes("Softmax")
        if (len(products), len(shares)) != (2, 1) or len(self._signature.outputs) not in (1, 3):
            raise _NotAttentionError
        score, weighted = products
        scaled = self._node(score.input[0], "Mul")
        operands = [
            self._operand(name) for name in (scaled.input[0], score.input[1], weighted.input[1])
        ]
        softcap, causal, window = self._softcap(), *self._causal()
        scores = str(shares[0].input[0])
        if causal:
            scores = self._node(scores, "Where").input[1]
        kind, fill, mask = self._mask_of(scores)
        q, k, v = self._heads(operands)
        reshape = self._body.producer(self._body.function.output[-1], "Reshape")
        columns = self._target(reshape)[-1] if q.stacked and reshape is not None else 0
        scale = self._body.constant(scaled.input[1])
        if scale is None or scale.size != 1 or min(q.heads, k.heads) < 1 or q.heads % k.heads:
            raise _NotAttentionError
        written = AttentionBody(
            q.heads, k.heads, q.width, v.width, scale.dtype, float(scale.reshape(())), q.stacked,
            softcap, kind, fill, causal, window, columns, bool(self._body.nodes("IsNaN")),
        )  # fmt: skip
        names = [operand.name for operand in (*operands, *([] if mask is None else [mask]))]
        if not self._body.computes(self._written(written, names, operands)):
            raise _NotAttentionError
        return self._form(written, (q, k, v), operands, mask)

    def _written(
        self, written: AttentionBody, names: list[str], operands: list[_Operand]
    ) -> onnx.FunctionProto:
        """Return the body of an attention after what parts its operands."""
        function = self._body.function
        splits = {name for node in self._body.nodes("Split") for name in node.input}
        before = [
            node for node in function.node
            if node.op_type == "Split" or splits.intersection(node.output)
        ]  # fmt: skip
        outputs = _MADE if len(function.output) == 3 else _MADE[-1:]
        pasts = [operand.past for operand in operands[1:]] if len(outputs) == 3 else []
        caches = list(zip(pasts, outputs, strict=False))
        nodes = written.nodes(names, outputs[-1], caches, operands[1].at)
        return helper.make_function(
            "", "attention", function.input, outputs, [*before, *nodes], function.opset_import
        )

    # ---- what is computed

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

    def _target(self, reshape: onnx.NodeProto) -> tuple[int, ...]:
        array = self._body.constant(reshape.input[1])
        if array is None or array.size not in (3, 4):
            raise _NotAttentionError
        return tuple(int(size) for size in array.flat)

    def _operand(self, name: str) -> _Operand:
        """Return what an operand is made of, one node after the other."""
        found = _Operand(name, ())
        for _ in self._body.function.node:
            node = self._body.maker(name)
            if node is None or node.op_type == "Split":
                break
            name = str(node.input[0])
            if node.op_type == "Reshape":
                found = replace(found, target=self._target(node))
            elif node.op_type == "Concat":
                found, name = replace(found, past=name), str(node.input[-1])
            elif node.op_type == "ScatterND":
                past = self._node(name, "Transpose").input[0]
                found, name = replace(found, past=past, at=node.input[1]), str(node.input[2])
        return replace(found, name=name)

    def _softcap(self) -> float:
        bent = self._body.nodes("Tanh")
        return self._number(self._node(bent[0].input[0], "Div").input[1]) if bent else 0.0

    def _causal(self) -> tuple[_Causality, int]:
        """Return which keys a query sees by their places."""
        lower = self._body.nodes("Trilu")
        if not lower:
            return "", 0
        is_last = bool(self._body.nodes("Squeeze"))
        if len(lower) == 1:
            return ("last" if is_last else "first"), 0
        beyond = str(lower[1].input[-1])
        if is_last:
            beyond = str(self._node(beyond, "Add").input[1])
        return ("last" if is_last else "first"), -int(self._number(beyond))

    def _mask_of(self, scores: str) -> tuple[_MaskKind, float, _Operand | None]:
        """Return how a mask is written, what it adds where a condition does not hold, and it."""
        where, fill = self._body.producer(scores, "Where"), -inf
        if where is None:
            add = self._body.producer(scores, "Add")
            if add is None:
                return "", fill, None
            where = self._body.producer(add.input[1], "Where")
            if where is None:
                return "added", fill, self._operand(add.input[1])
            fill = self._number(where.input[2])
        is_of_keys = self._body.producer(where.input[0], "Unsqueeze") is not None
        return "keys" if is_of_keys else "chosen", fill, self._operand(where.input[0])

    # ---- where it lies

    def _spec(self, name: str) -> TensorSpec:
        """Return the input of this name, of four axes."""
        number = self._body.inputs.get(name)
        if number is None or len(self._signature.inputs[number].shape) != 4:
            raise _NotAttentionError
        return self._signature.inputs[number]

    def _heads(self, operands: list[_Operand]) -> list[Heads]:
        """Return where Q, K and V lie."""
        q, *others = operands
        if q.target[:2] == (0, 0):
            return [self._columns(operand) for operand in operands]
        return [
            self._one_row(q) if q.target else self._stacked(q), *map(self._stacked, others)
        ]  # fmt: skip

    def _stacked(self, operand: _Operand) -> Heads:
        spec = self._spec(operand.past if operand.at else operand.name)
        batch, heads, rows, width = spec.shape
        if not isinstance(heads, int) or not isinstance(width, int):
            raise RefusedError("attention of heads whose number or width is not known")
        tensor, length = self._body.inputs[operand.name], ONE if operand.at else extent_of(rows)
        if operand.at and self._spec(operand.name).shape != (1, batch, heads, width):
            raise _NotAttentionError
        return Heads(tensor, True, heads, width, extent_of(batch), length, width)

    def _one_row(self, operand: _Operand) -> Heads:
        """Return heads of one row each, [..., width], which lie like stacked ones."""
        tensor = self._body.inputs.get(operand.name)
        if tensor is None or len(operand.target) != 4:
            raise _NotAttentionError
        _, heads, _, width = operand.target
        elements = product(map(extent_of, self._signature.inputs[tensor].shape))
        batch = elements.divided_by(Extent(heads * width)) if heads * width > 0 else None
        if batch is None:
            raise _NotAttentionError
        return Heads(tensor, True, heads, width, batch, ONE, width)

    def _columns(self, operand: _Operand) -> Heads:
        """Return heads that are a row's columns: an input's, or a part of them."""
        if len(operand.target) != 4:
            raise _NotAttentionError
        _, _, heads, width = operand.target
        name, first, count = operand.name, 0, heads * width
        split = self._body.producer(name, "Split")
        if split is not None:
            name = self._without_bias(split.input[0])
        tensor = self._body.inputs.get(name)
        shape = () if tensor is None else self._signature.inputs[tensor].shape
        if tensor is None or len(shape) != 3:
            raise _NotAttentionError
        batch, rows, pitch = shape
        if not isinstance(pitch, int):
            raise RefusedError("attention of rows whose length is not known")
        if split is not None:
            sizes = self._body.split_sizes(split, pitch)
            if sizes is None or integer(split, "axis", 0) not in (2, -1):
                raise _NotAttentionError
            part = list(split.output).index(operand.name)
            first, count = sum(sizes[:part]), sizes[part]
        if count != heads * width or first + count > pitch or width < 1:
            raise _NotAttentionError
        return Heads(tensor, False, heads, width, extent_of(batch), extent_of(rows), pitch, first)

    def _without_bias(self, name: str) -> str:
        """Return what a row is added to, and keep which; or the name itself."""
        add = self._body.producer(name, "Add")
        if add is None:
            self._biases.append(None)
            return name
        rows, row = (self._body.inputs.get(each) for each in add.input)
        inputs = self._signature.inputs
        if rows is None or row is None or inputs[row].shape != inputs[rows].shape[2:]:
            raise _NotAttentionError
        self._biases.append(row)
        return str(add.input[0])

    # ---- whether a kernel computes it

    def _form(
        self,
        written: AttentionBody,
        heads: tuple[Heads, Heads, Heads],
        operands: list[_Operand],
        mask: _Operand | None,
    ) -> AttentionForm:
        signature, (q, k, v) = self._signature, heads
        caches = self._caches(operands[1:], (k, v))
        keys = k.length if caches is None else extent_of(signature.outputs[0].shape[2])
        found = None if mask is None else self._mask(written, mask, q, keys)
        self._check(written, q, k, v)
        index = len(signature.inputs) + len(signature.outputs) - 1
        pitch = v.width if q.stacked else q.heads * v.width
        made = Heads(index, q.stacked, q.heads, v.width, q.batch, q.length, pitch)
        bias = self._biases[0] if self._biases else None
        if bias is not None:
            # A bound of the scores is not moved as they are by what is added to keys.
            one = len({q.tensor, k.tensor, v.tensor}) == 1
            if written.softcap or self._biases != [bias] * 3 or not one:
                raise RefusedError("attention of parts with a bias, and a bound of its scores")
        elif any(item is not None for item in self._biases):
            raise RefusedError("attention of parts of which some have a bias")
        causal = Causal(written.causal == "last", written.window) if written.causal else None
        return AttentionForm(
            signature, q, k, v, made, found, written.scale, written.softcap, causal, bias, caches
        )

    def _caches(
        self, operands: list[_Operand], heads: tuple[Heads, Heads]
    ) -> tuple[Cache, Cache] | None:
        """Return those of keys and values, with shapes that fit the new rows."""
        signature = self._signature
        if len(signature.outputs) == 1:
            return None
        found = []
        for made, (operand, new) in enumerate(zip(operands, heads, strict=True)):
            past, at = self._spec(operand.past), self._body.inputs.get(operand.at)
            if at is not None and signature.inputs[at] != replace(
                signature.inputs[at], dtype="int64", shape=(1, 1)
            ):
                raise _NotAttentionError
            for spec in (past, signature.outputs[made]):
                batch, count, _, width = spec.shape
                if (extent_of(batch), count, width) != (new.batch, new.heads, new.width):
                    raise RefusedError("attention with a cache not known to be of its heads")
                if spec.dtype != signature.inputs[new.tensor].dtype:
                    raise RefusedError(f"attention with a cache of {spec.dtype}")
            present = len(signature.inputs) + made
            rows = extent_of(past.shape[2])
            found.append(Cache(self._body.inputs[operand.past], present, rows, at))
        keys, values = found
        if (keys.rows, keys.at) != (values.rows, values.at):
            raise RefusedError("attention with caches not known to be of one length")
        return keys, values

    def _mask(self, written: AttentionBody, mask: _Operand, q: Heads, keys: Extent) -> Mask:
        tensor, fill = self._body.inputs.get(mask.name), written.fill
        if tensor is None:
            raise _NotAttentionError
        spec = self._signature.inputs[tensor]
        shape = [extent_of(dim) for dim in spec.shape]
        if written.mask == "keys":
            if len(shape) != 2:
                raise _NotAttentionError
            shape = [shape[0], ONE, ONE, shape[1]]
        if len(shape) > 4 or len(shape) < 2:
            raise RefusedError("attention with a mask of another rank")
        batch, heads, rows, own = [ONE, ONE, *shape][-4:]
        if own != keys or rows not in (ONE, q.length):
            raise RefusedError("attention with a mask that is not known to be of queries and keys")
        if batch not in (ONE, q.batch) or heads not in (ONE, Extent(q.heads)):
            raise RefusedError("attention with a mask of another number of samples or heads")
        is_added = written.mask == "added"
        dtypes = (self._signature.inputs[q.tensor].dtype,) if is_added else ("bool", "int32")
        if spec.dtype not in dtypes:
            raise RefusedError(f"attention with a mask of {spec.dtype}")
        return Mask(tensor, None if is_added else fill, rows != ONE, batch != ONE, heads != ONE)

    def _check(self, written: AttentionBody, q: Heads, k: Heads, v: Heads) -> None:
        dtypes = {self._signature.inputs[heads.tensor].dtype for heads in (q, k, v)}
        dtypes.add(self._signature.outputs[-1].dtype)
        if len(dtypes) > 1 or not dtypes <= set(_TYPES):
            raise RefusedError(f"attention of {' and '.join(sorted(dtypes))}")
        if k.heads != v.heads or q.width != k.width:
            raise RefusedError("attention of heads that do not fit each other")
        if not q.batch == k.batch == v.batch or k.length != v.length:
            raise RefusedError("attention whose operands are not known to have equal sizes")
        if not 0.0 < written.scale < inf or not 0.0 <= written.softcap < inf:
            raise RefusedError("attention with a scale that is no positive number")
