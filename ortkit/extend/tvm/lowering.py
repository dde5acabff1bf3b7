"""A user's TIR function as the C function that kernels are: pointers, sizes, a range of units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ortkit.errors import KernelError
from ortkit.kernels.signature import TensorSpec

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

# The C calling convention, as tvm::CallingConv numbers it.
_C_PACKED_FREE = 2
#: What a kernel may keep on the stack: threads of a session have 8 MiB of it, of Python's less.
_MOST_STACK_BYTES = 1 << 20


@dataclass(frozen=True)
class Parts:
    """What is made into one function.

    Args:
        symbol: Its name.
        function: The user's, over buffers.
        tensors: In the order of the pointers; attributes are of one number.
        shapes: Their sizes, as the function has them.
        sizes: The named sizes, in the order of the parameters, as the function has them.
        scalars: Parameters of the function that are no buffers: "attribute", "size", "range".
        split: The size that units are counted along, the first axis of what has it; or empty.
        is_range: Whether the function itself has `begin` and `end`.
        may_alias: Whether an output may lie where an input lies.
    """

    symbol: str
    function: Expr
    tensors: Sequence[TensorSpec]
    shapes: Sequence[Sequence[Expr]]
    sizes: Mapping[str, Expr]
    scalars: Mapping[str, str]
    split: str
    is_range: bool
    may_alias: bool = False


def lowered(parts: Parts) -> Expr:
    """Return `int32_t symbol(void* tensor..., int64_t size..., int64_t begin, int64_t end)`.

    Raises:
        KernelError: It keeps tensors that are too large, or of sizes that a run tells.
    """
    import tvm
    from tvm import s_tir, tirx

    function = parts.function
    buffers = [param for param in function.params if tirx.is_buffer_var(param)]
    if not buffers:
        return _renamed(parts)
    function = function.with_attr("global_symbol", parts.symbol)
    transform = s_tir.transform
    blocks = (
        transform.CanonicalizeLoop(), transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(), transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(), transform.LowerMatchBuffer(),
        transform.StmtSimplify(), transform.LowerOpaqueBlock(),
    )  # fmt: skip
    loops = (
        tirx.transform.FlattenBuffer(), tirx.transform.BF16ComputeLegalize(),
        transform.LoopPartition(), tirx.transform.VectorizeLoop(True),
        tirx.transform.StorageRewrite(), tirx.transform.UnrollLoop(),
        tirx.transform.StmtSimplify(), tirx.transform.RemoveNoOp(),
        transform.RewriteUnsafeSelect(), tirx.transform.CommonSubexprElim(),
        tirx.transform.BF16StorageLegalize(),
    )  # fmt: skip
    # Loops of a known length are partitioned too: what is left after whole vectors.
    config = {"s_tir.LoopPartition": {"partition_const_loop": True}}
    with tvm.transform.PassContext(config=config):
        module = tvm.ir.transform.Sequential(blocks)(tvm.IRModule({parts.symbol: function}))
        _check_stack(module)
        plain = _Wrapper(parts, module[parts.symbol]).function()
        module = tvm.ir.transform.Sequential(loops)(tvm.IRModule({parts.symbol: plain}))
    return module[parts.symbol]


def _renamed(parts: Parts) -> Expr:
    """Return a function that has the calling convention of kernels already."""
    wanted = len(parts.tensors) + len(parts.sizes) + 2
    if len(parts.function.params) != wanted:
        raise KernelError(
            f"a function over pointers with units has {wanted} parameters here (tensors, sizes "
            f"{', '.join(parts.sizes) or 'none'}, begin, end), and this one has "
            f"{len(parts.function.params)}"
        )
    return parts.function.with_attrs(
        {"global_symbol": parts.symbol, "calling_conv": _C_PACKED_FREE}
    )


def _check_stack(module: Expr) -> None:
    from tvm.s_tir import analysis

    found = analysis.calculate_allocated_bytes(module)
    total = sum(int(size) for scopes in found.values() for size in scopes.values())
    if total > _MOST_STACK_BYTES:
        raise KernelError(
            f"its intermediate tensors take {total} bytes of the stack, at most "
            f"{_MOST_STACK_BYTES} are there: compute them where they are needed"
        )


class _Wrapper:
    """The parameters and bindings around the user's statements."""

    def __init__(self, parts: Parts, function: Expr) -> None:
        import tvm
        from tvm import tirx

        self.ir, self.tir = tvm.ir, tirx
        self.parts, self.inner = parts, function
        self.begin, self.end = tirx.Var("begin", "int64"), tirx.Var("end", "int64")
        self._bound: list[Expr] = []
        self.outer = {name: tirx.Var(f"{name}_size", "int64") for name in parts.sizes}
        self.pointers = [
            tirx.Var(f"p{index}", tvm.ir.PointerType(tvm.ir.PrimType(tensor.dtype)))
            for index, tensor in enumerate(parts.tensors)
        ]

    def function(self) -> Expr:
        """Return the whole function."""
        body = [*self._sizes(), *self._buffers(), self.inner.body]
        parameters = [*self.pointers, *self.outer.values(), self.begin, self.end]
        return self.tir.PrimFunc(
            parameters, self.tir.SeqStmt(body), self.ir.PrimType("int32")
        ).with_attrs(
            {
                "global_symbol": self.parts.symbol,
                "tirx.noalias": not self.parts.may_alias,
                "calling_conv": _C_PACKED_FREE,
            }
        )

    def _sizes(self) -> list[Expr]:
        """Bind the sizes, as the function calls them, to the parameters."""
        bound = []
        for name, inner in self.parts.sizes.items():
            if not isinstance(inner, self.tir.Var):  # a number
                continue
            is_split = name == self.parts.split
            bound.append(
                self.tir.Bind(inner, self.end - self.begin if is_split else self.outer[name])
            )
        return bound

    def _buffers(self) -> list[Expr]:
        """Declare the buffers where their pointers lie, and bind everything else."""
        statements: list[Expr] = []
        attributes: dict[str, Expr] = {}
        buffers = [item for item in self.inner.params if self.tir.is_buffer_var(item)]
        # Attributes that come as numbers have no buffer in the function.
        numbers = [name for name, what in self.parts.scalars.items() if what == "attribute"]
        found = zip(self.parts.tensors, self.parts.shapes, self.pointers, strict=True)
        rest = iter(buffers)
        for tensor, shape, pointer in found:
            if tensor.name in numbers and tensor.shape == ():
                flat = self._flat(tensor, pointer, statements)
                attributes[tensor.name] = flat[self.tir.const(0, "int64")]
                continue
            buffer = next(rest)
            statements += self._own_sizes(buffer, shape)
            statements += self._declared(buffer, tensor, pointer)
        for param in self.inner.params:
            what = self.parts.scalars.get(str(param.name))
            if what is not None and not self.tir.is_buffer_var(param):
                value = self._scalar(str(param.name), what, attributes)
                statements.append(self.tir.Bind(param, value.astype(str(param.ty.dtype))))
        return statements

    def _scalar(self, name: str, what: str, attributes: Mapping[str, Expr]) -> Expr:
        if what == "attribute":
            return attributes[name]
        if what == "range":
            return self.begin if name == "begin" else self.end
        return self.parts.sizes[name]

    def _own_sizes(self, buffer: Expr, shape: Sequence[Expr]) -> list[Expr]:
        """Bind the names that the user's function has for sizes."""
        bound = []
        for dim, size in zip(buffer.ty.shape, shape, strict=True):
            is_ours = any(dim.same_as(item) for item in self.parts.sizes.values())
            if (
                not isinstance(dim, self.tir.Var)
                or is_ours
                or any(dim.same_as(one) for one in self._bound)
            ):
                continue
            self._bound.append(dim)
            bound.append(self.tir.Bind(dim, size.astype(str(dim.ty.dtype))))
        return bound

    def _flat(self, tensor: TensorSpec, pointer: Expr, statements: list[Expr]) -> Expr:
        """Declare all of a pointer's memory; accesses are flat, so the extent is never checked."""
        room = self.tir.const(2**40, "int64")
        flat = self.tir.decl_buffer((room,), tensor.dtype, name=f"{tensor.name}_all")
        statements.append(self.tir.DeclBuffer(flat, data=pointer))
        return flat

    def _declared(self, buffer: Expr, tensor: TensorSpec, pointer: Expr) -> list[Expr]:
        is_split = bool(tensor.shape) and tensor.shape[0] == self.parts.split
        if not self.parts.split or not is_split:
            return [self.tir.DeclBuffer(buffer, data=pointer)]
        statements: list[Expr] = []
        flat = self._flat(tensor, pointer, statements)
        start = self.begin
        for dim in buffer.ty.shape[1:]:
            start = start * dim.astype("int64")
        address = self.tir.address_of(flat[start])
        statements.append(self.tir.DeclBuffer(buffer, data=address))
        return statements
