"""What is kept of a compiled kernel in addition to its files, as JSON types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.cache_files import DAMAGED
from ortkit.kernels.cuda import (
    Argument,
    CeilDiv,
    Condition,
    CudaKernel,
    Image,
    LeftOut,
    Product,
    Step,
    TensorMap,
    Variant,
)
from ortkit.kernels.sizes import Extent
from ortkit.targets.target import Target

Record = dict[str, object]
_KINDS = ("tensor", "scratch", "size32", "size64", "null", "map")


def files_of(kernel: Kernel | CudaKernel) -> tuple[Path, ...]:
    """Return the files that a kernel lies in, in an order that depends on nothing else."""
    if isinstance(kernel, Kernel):
        return (kernel.artifact,)
    return tuple(sorted({image.path for image in kernel.images}))


def record_of(kernel: Kernel | CudaKernel) -> Record:
    """Return what `kernel_from` needs; it is the same for all signatures of one key."""
    if isinstance(kernel, Kernel):
        artifact, launch = kernel.artifact.name, asdict(kernel.launch)
        return {"artifact": artifact, "symbol": kernel.symbol, "launch": launch}
    return {
        "variants": [asdict(variant) for variant in kernel.variants],
        "images": [{**asdict(image), "path": image.path.name} for image in kernel.images],
        "left_out": [asdict(left_out) for left_out in kernel.left_out],
    }


def kernel_from(
    record: Mapping[str, Any],
    key: str,
    backend: str,
    target: Target,
    files: Mapping[str, Path],
    compile_seconds: float = 0.0,
) -> Kernel | CudaKernel | None:
    """Return the kernel of a record, None if it is no such record.

    Args:
        record: See `record_of`.
        key: The signature's.
        backend: The backend's name.
        target: What it was made for.
        files: Where the files are now that the record names.
        compile_seconds: 0 when it came from the cache.
    """
    try:
        if "variants" in record:
            variants = tuple(map(_variant, record["variants"]))
            images = tuple(_image(item, files) for item in record["images"])
            left_out = tuple(
                LeftOut(int(one["architecture"]), str(one["reason"]), bool(one["is_variant"]))
                for one in record["left_out"]
            )
            return CudaKernel(key, backend, target, variants, images, compile_seconds, left_out)
        artifact, launch = files[record["artifact"]], _launch(record["launch"])
    except DAMAGED:
        return None
    symbol = record.get("symbol")
    if not isinstance(symbol, str):
        return None
    return Kernel(key, backend, target, artifact, symbol, launch, compile_seconds)


def _launch(record: Mapping[str, Any]) -> Launch:
    return Launch(
        units=tuple(_extent(item) for item in record["units"]),
        points=_extent(record["points"]),
        picoseconds_per_point=int(record["picoseconds_per_point"]),
        inplace=tuple((int(source), int(target)) for source, target in record["inplace"]),
        shared_nanoseconds=int(record["shared_nanoseconds"]),
        slice_picoseconds=int(record["slice_picoseconds"]),
        streams_constants=bool(record["streams_constants"]),
    )


def _extent(record: Mapping[str, Any]) -> Extent:
    return Extent(int(record["factor"]), tuple(map(str, record["symbols"])))


# ---- CUDA


def _variant(record: Mapping[str, Any]) -> Variant:
    return Variant(
        conditions=tuple(map(_condition, record["conditions"])),
        aligned=bool(record["aligned"]),
        steps=tuple(map(_step, record["steps"])),
        scratch=tuple(map(_extent, record["scratch"])),
    )


def _condition(record: Mapping[str, Any]) -> Condition:
    most = record["at_most"]
    at_most = None if most is None else int(most)
    return Condition(_extent(record["extent"]), int(record["divisible_by"]), at_most)


def _step(record: Mapping[str, Any]) -> Step:
    x, y, z = (CeilDiv(_extent(item["extent"]), int(item["divisor"])) for item in record["grid"])
    arguments = tuple(map(_argument, record["arguments"]))
    entry, threads = str(record["entry"]), int(record["threads"])
    maps = tuple(map(_map, record["maps"]))
    shared, product = int(record["shared_bytes"]), _product(record["product"])
    return Step(entry, (x, y, z), threads, shared, arguments, maps, product)


def _product(record: Mapping[str, Any] | None) -> Product | None:
    if record is None:
        return None
    x, weight, y = (int(record[name]) for name in ("x", "weight", "y"))
    rows = _extent(record["rows"])
    return Product(x, weight, y, rows, int(record["columns"]), int(record["depth"]))


def _map(record: Mapping[str, Any]) -> TensorMap:
    return TensorMap(
        int(record["tensor"]),
        tuple(map(_extent, record["dims"])),
        tuple(map(_extent, record["strides"])),
        tuple(map(int, record["box"])),
        int(record["first"]),
        int(record["swizzle"]),
    )


def _argument(record: Mapping[str, Any]) -> Argument:
    kind, extent = record["kind"], record["extent"]
    if kind not in _KINDS:
        raise ValueError(kind)
    return Argument(kind, int(record["index"]), None if extent is None else _extent(extent))


def _image(record: Mapping[str, Any], files: Mapping[str, Path]) -> Image:
    return Image(
        int(record["architecture"]),
        bool(record["is_ptx"]),
        int(record["variant"]),
        int(record["step"]),
        files[record["path"]],
        bool(record["waits"]),
    )
