"""Gluon's kernels for Hopper in numpy: warps with roles as threads, barriers and copies of boxes.

A product of matrices reads shared memory when it is waited for and not when it is issued, so that
a place which is given back too early is seen; a barrier that nothing completes ends the run.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

_TYPES = {
    "u8": np.uint8, "i8": np.int8, "i32": np.int32, "i64": np.int64,
    "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
_NAME = "triton.experimental.gluon"
#: Until a wait is taken for one that never ends; a busy machine runs one thread after the other.
_SECONDS = 300.0
_PAUSE = 1e-4


class Value(np.ndarray):
    """A tile or a number; numbers are arrays without axes."""

    type = SimpleNamespace(layout=None)

    def permute(self, order: Sequence[int]) -> Value:
        return self.transpose(order)  # type: ignore[return-value]

    def to(self, dtype: Any, bitcast: bool = False) -> Value:
        if bitcast:
            return np.ascontiguousarray(self).view(dtype).view(Value)
        if np.dtype(dtype) == ml_dtypes.float8_e4m3fn:  # what is beyond the range becomes its end
            return np.clip(self, -448, 448).astype(dtype)  # type: ignore[return-value]
        return self.astype(dtype)

    # A value stays what it is: only the name is another one's.
    def __iadd__(self, other: Any) -> Value:  # type: ignore[misc,override]
        return self + other

    def __imul__(self, other: Any) -> Value:  # type: ignore[misc,override]
        return self * other


def value(array: Any, dtype: Any = None) -> Value:
    return np.asarray(array, dtype).view(Value)


class Pointer:
    """Addresses of elements of a flat array."""

    def __init__(self, array: np.ndarray, at: Any = 0) -> None:
        self.array, self.at = array, at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.array, self.at + more)


class Memory:
    """A tile in shared memory."""

    def __init__(self, array: np.ndarray, layout: Any) -> None:
        self.array, self.layout = array, layout
        self.shape, self.dtype = list(array.shape), array.dtype

    def index(self, at: Any) -> Memory:
        return Memory(self.array[int(at)], self.layout)

    def permute(self, order: Sequence[int]) -> Memory:
        return Memory(self.array.transpose(order), self.layout)

    def reinterpret(self, dtype: Any, shape: Sequence[int], layout: Any) -> Memory:
        made = self.array.view(dtype).reshape(shape)
        assert np.shares_memory(made, self.array)
        return Memory(made, layout)

    def load(self, layout: Any) -> Value:
        return value(self.array.copy())

    def store(self, tile: Any) -> None:
        assert tile.dtype == self.dtype
        self.array[...] = tile


class Map:
    """A tensor that boxes are copied of."""

    def __init__(
        self,
        data: np.ndarray,
        dtype: str,
        dims: Sequence[int],
        strides: Sequence[int],
        block: Sequence[int],
    ) -> None:
        self.dtype = np.dtype(_TYPES[dtype])
        self.block_shape, self.layout = list(block), object()
        self.nbytes_per_cta = int(np.prod(block)) * self.dtype.itemsize
        whole = [*strides, self.dtype.itemsize]
        end = sum((size - 1) * stride for size, stride in zip(dims, whole, strict=True))
        assert end + self.dtype.itemsize <= data.nbytes, "a map goes beyond its tensor"
        self.tensor = np.lib.stride_tricks.as_strided(data.view(self.dtype), dims, whole)

    def parts(self, at: Sequence[Any]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Where a box lies in the tensor, and which part of the box is in it."""
        inside, own = [], []
        for first, size, most in zip(at, self.block_shape, self.tensor.shape, strict=True):
            low, high = max(int(first), 0), max(min(int(first) + size, most), 0)
            inside.append(slice(low, max(low, high)))
            own.append(slice(low - int(first), max(low, high) - int(first)))
        return tuple(inside), tuple(own)


class Barrier:
    """An mbarrier: a phase ends when all have arrived and all bytes have come."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.missing = self.phase = 0

    def index(self, at: Any) -> Barrier:
        assert int(at) == 0
        return self

    def init(self, count: int) -> None:
        assert not self.count, "a barrier is made where one is"
        self.count = self.pending = count

    def invalidate(self) -> None:
        assert self.pending == self.count and not self.missing, "a barrier ends within a phase"
        self.count = self.pending = self.phase = 0

    def change(self, arrivals: int, missing: int) -> None:
        with self.changed:
            assert self.count, "a barrier is used before it is made"
            self.pending -= arrivals
            self.missing += missing
            assert self.pending >= 0, "more arrivals than a barrier waits for"
            if self.pending == 0 and self.missing == 0:
                self.pending, self.phase = self.count, self.phase + 1
                self.changed.notify_all()
        # Whoever may go on does so at once.
        time.sleep(_PAUSE)

    def wait(self, parity: Any) -> None:
        with self.changed:
            is_over = self.changed.wait_for(lambda: self.phase % 2 != int(parity), _SECONDS)
        assert is_over, "a wait that never ends"


class Barriers:
    """Several of them."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, at: Any) -> Barrier:
        return self.all[int(at)]


class Product:
    """A product of matrices that is under way."""

    under_way = threading.local()

    def __init__(self, compute: Callable[[], Value]) -> None:
        self.compute, self.made = compute, None
        self.queue().append(self)

    @classmethod
    def queue(cls) -> list[Product]:
        if not hasattr(cls.under_way, "queue"):
            cls.under_way.queue = []
        return cls.under_way.queue

    def finish(self) -> None:
        self.made = self.compute()


def product(a: Any, b: Memory, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
    def compute() -> Value:
        left = a.array if isinstance(a, Memory) else a
        before = acc.made if isinstance(acc, Product) else acc
        is_whole = before.dtype == np.int32
        wide, narrow = (np.float64, np.int32) if is_whole else (np.float32, np.float32)
        made = np.asarray(left, wide) @ np.asarray(b.array, wide)
        return value(made + before if use_acc else made, narrow)

    assert is_async
    return Product(compute)


def wait_for_products(outstanding: int = 0, deps: Sequence[Product] = ()) -> Any:
    queue = Product.queue()
    while len(queue) > outstanding:
        queue.pop(0).finish()
    # What is not there yet stays a product, which nothing but another product can read; what is
    # none is waited with, and passed on.
    made = tuple(
        dep.made if isinstance(dep, Product) and dep.made is not None else dep for dep in deps
    )
    return made[0] if len(made) == 1 else made


def reduced(tiles: tuple[Any, ...], axis: int, combine: Function) -> tuple[Value, ...]:
    """Put the elements of each tile together, the halves of what is left again and again."""
    assert axis == 0
    while (length := len(tiles[0])) > 1:
        assert length % 2 == 0
        halves = (
            tile[start : start + length // 2] for start in (0, length // 2) for tile in tiles
        )
        tiles = combine(*halves)
    return tuple(value(tile[0]) for tile in tiles)


def copy_in(map_: Map, at: Sequence[Any], barrier: Barrier, room: Memory) -> None:
    inside, own = map_.parts(at)
    assert room.shape == map_.block_shape and room.dtype == map_.dtype
    room.array[...] = 0
    room.array[own] = map_.tensor[inside]
    barrier.change(0, -map_.nbytes_per_cta)


def copy_out(map_: Map, at: Sequence[Any], room: Memory) -> None:
    inside, own = map_.parts(at)
    map_.tensor[inside] = room.array[own]


def load(at: Pointer, mask: Any = None, other: Any = 0) -> Value:
    places = np.asarray(at.at)
    is_read = np.broadcast_to(True if mask is None else mask, places.shape)
    read = places[is_read]
    assert ((read >= 0) & (read < len(at.array))).all(), "read beyond a tensor"
    made = np.full(places.shape, other, at.array.dtype)
    made[is_read] = at.array[read]
    return value(made)


class Function:
    """A function of a kernel; with a grid, all of its blocks one after the other."""

    place = threading.local()

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)

    def launch(self, grid: Sequence[int], arguments: Sequence[Any]) -> None:
        for place in np.ndindex(*grid):
            Function.place.at, Function.place.grid = place, grid
            self.function(*arguments)


def specialize(roles: Sequence[Any], warps: Sequence[int], registers: Sequence[int]) -> None:
    """Run the roles beside each other; the first that fails is what fails."""
    assert len(roles) == len(warps) + 1 == len(registers) + 1
    failed: list[BaseException] = []
    at, grid = Function.place.at, Function.place.grid

    def run(function: Function, arguments: Sequence[Any]) -> None:
        Function.place.at, Function.place.grid = at, grid
        try:
            with np.errstate(all="ignore"):
                function(*arguments)
            assert not Product.queue(), "a product is never waited for"
        except BaseException as error:  # noqa: BLE001  of a thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def assembled(text: str, _: str, tiles: Sequence[Any], **__: Any) -> Value:
    """Compute what one of the instructions does that kernels have as assembly."""
    instruction = re.search(r"[a-z]+[.\w]*\.\w+", text.replace(".reg .b32", ""))
    assert instruction is not None
    return _INSTRUCTIONS[instruction[0]](*tiles)


def _in_unit(a: Value, b: Value, c: Value) -> Value:
    exact = np.float64(1) * a * b + c
    return value(np.clip(exact, 0, 1), np.float32)


#: What a thread does with one element, by the first instruction.
_INSTRUCTIONS: dict[str, Callable[..., Value]] = {
    "cvt.pack.sat.u8.s32.b32": lambda x: value(np.clip(x, 0, 255), np.uint8),
    "prmt.b32": lambda x: value(x.astype(np.int32) | 0x4B000000, np.int32),
    "min.relu.s32": lambda x: value(np.clip(x, 0, 0x437F0000), np.int32),
    "fma.rn.sat.f32": _in_unit,
}


def _language() -> SimpleNamespace:
    def extreme(function: Any) -> Any:
        return lambda tile, axis: value(function(tile, axis=axis))

    layouts = {
        name: lambda *a, **k: None
        for name in (
            "BlockedLayout",
            "SliceLayout",
            "DotOperandLayout",
            "NVMMADistributedLayout",
            "SwizzledSharedLayout",
        )
    }
    return SimpleNamespace(
        **layouts,
        NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
        constexpr=lambda given: given,
        float32=np.float32, int32=np.int32, int64=np.int64, uint8=np.uint8, static_range=range,
        # Products of bytes have unsigned first factors; see `ortkit.kernels.triton.unsigned`.
        int8=np.uint8,
        inline_asm_elementwise=assembled,
        div_rn=lambda a, b: value(np.float32(1) * a / b),
        cdiv=lambda a, b: value(-(-a // b)),
        num_warps=lambda: 4,
        program_id=lambda axis: value(Function.place.at[axis], np.int32),
        num_programs=lambda axis: value(Function.place.grid[axis], np.int32),
        arange=lambda start, end, layout: value(np.arange(start, end, dtype=np.int32)),
        zeros=lambda shape, dtype, layout: value(np.zeros(shape, dtype)),
        full=lambda shape, number, dtype, layout=None: value(np.full(shape, number, dtype)),
        convert_layout=lambda tile, layout: tile,
        where=lambda choice, a, b: value(
            np.where(choice, *(np.float32(x) if isinstance(x, float) else x for x in (a, b)))
        ),
        maximum=lambda a, b: value(np.maximum(a, b)),
        minimum=lambda a, b: value(np.minimum(a, b)),
        exp2=lambda tile: value(np.exp2(tile)),
        abs=lambda tile: value(np.abs(tile)),
        fma=lambda a, b, c: value(np.float32(1) * a * b + c, np.float32),
        fdiv=lambda a, b: value(np.float32(1) * a / b),
        max=extreme(np.max), min=extreme(np.min), sum=extreme(np.sum),
        load=load,
        reduce=reduced,
        allocate_shared_memory=lambda dtype, shape, layout: Memory(
            np.full(shape, np.nan, dtype), layout
        ),
        warp_specialize=specialize,
    )  # fmt: skip


def _hopper() -> SimpleNamespace:
    return SimpleNamespace(
        fence_async_shared=lambda: None,
        warpgroup_mma=product,
        warpgroup_mma_wait=wait_for_products,
        mbarrier=SimpleNamespace(
            allocate_mbarrier=lambda batch=None: Barrier() if batch is None else Barriers(batch),
            init=lambda barrier, count: barrier.init(count),
            expect=lambda barrier, count: barrier.change(1, int(count)),
            arrive=lambda barrier, pred=True: barrier.change(1, 0) if pred else None,
            wait=lambda barrier, phase: barrier.wait(phase),
            invalidate=lambda barrier: barrier.invalidate(),
        ),
        tma=SimpleNamespace(
            async_load=copy_in, async_store=copy_out, store_wait=lambda pending: None
        ),
    )


@contextmanager
def gluon_in_numpy() -> Iterator[None]:
    """Import Gluon as what is written here."""
    made: dict[str, Any] = {
        _NAME: SimpleNamespace(
            jit=Function, constexpr_function=lambda given: given, language=_language()
        )
    }
    made[f"{_NAME}.language"] = made[_NAME].language
    made[f"{_NAME}.language.nvidia.hopper"] = _hopper()
    modules: dict[str, Any] = sys.modules
    # What is imported here for the first time would be found in part by others afterwards.
    before = {name: import_module(name) for name in made}
    parent: Any = modules["triton.experimental"]
    modules.update(made)
    parent.gluon = made[_NAME]
    try:
        yield
    finally:
        modules.update(before)
        parent.gluon = before[_NAME]


def launch(
    text: str,
    entry: str,
    grid: Sequence[int],
    arguments: Sequence[tuple[str, Any]],
    blocks: Sequence[np.ndarray],
) -> None:
    """Launch a kernel's source.

    Args:
        text: A module.
        entry: The function.
        grid: Blocks along x, y and z.
        arguments: The type of each parameter, and a number, where a tensor begins in which block,
            or for a map that and its dims and strides.
        blocks: Bytes with tensors in them.
    """
    names: dict[str, Any] = {}
    with gluon_in_numpy():
        exec(compile(text, entry, "exec"), names)
    names[entry].launch(grid, [_given(type_, item, blocks) for type_, item in arguments])


def _given(type_: str, one: Any, blocks: Sequence[np.ndarray]) -> Any:
    if type_.startswith("*"):
        data = blocks[one[0]][one[1] :]
        dtype = np.dtype(_TYPES[type_.removeprefix("*")])
        return Pointer(data[: len(data) // dtype.itemsize * dtype.itemsize].view(dtype))
    if type_.startswith("tensordesc"):
        dtype, box = re.match(r"tensordesc<(\w+)\[([^]]*)\]", type_).groups()  # type: ignore[union-attr]
        place, start, dims, strides = one
        data = blocks[place][start:]
        return Map(
            data[: len(data) // 2 * 2], dtype, dims, strides, [int(x) for x in box.split(",")]
        )
    return value(one, _TYPES[type_])
