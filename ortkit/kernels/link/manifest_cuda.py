"""The part of a library's manifest that says how its kernels for CUDA are launched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.cuda import (
    Argument,
    CudaKernel,
    Image,
    Product,
    Step,
    TensorMap,
    Variant,
)
from ortkit.kernels.link.csource import c_extent, c_extents, c_text
from ortkit.kernels.sizes import ONE, Extent

# As custom_ops/native/manifest.h has them.
_MAX_VARIANTS, _MAX_STEPS, _MAX_ARGUMENTS, _MAX_SCRATCH = 16, 8, 128, 8
_MAX_MAPS, _MAX_RANK, _MAX_BOX, _MAP_BYTES = 8, 5, 256, 16
_SWIZZLES = (0, 32, 64, 128)
_MAX_THREADS = 1024
_KINDS = {
    "tensor": "ORTKIT_ARGUMENT_TENSOR",
    "scratch": "ORTKIT_ARGUMENT_SCRATCH",
    "size32": "ORTKIT_ARGUMENT_SIZE32",
    "size64": "ORTKIT_ARGUMENT_SIZE64",
    "null": "ORTKIT_ARGUMENT_NULL",
    "number": "ORTKIT_ARGUMENT_NUMBER",
    "map": "ORTKIT_ARGUMENT_MAP",
}
# The two addresses of the toolchain's own scratch that end each entry point's parameters.
_ENDING = (Argument("null"), Argument("null"))
_ENTRY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@dataclass(frozen=True)
class ImageFile:
    """Code of one launch, under a name that its bytes decide.

    Equal input must give equal bytes, and a compiler that keeps its results (zig) looks at the
    source and not at what it includes: so the name in the source says what it is.
    """

    content: bytes

    @property
    def name(self) -> str:
        """A name in C, and the file's with `.bin`."""
        return f"image_{hashlib.sha256(self.content).hexdigest()[:24]}"


def image_files(kernels: Iterable[CudaKernel]) -> dict[Path, ImageFile]:
    """Read the kernels' images; equal ones are equal values.

    Raises:
        KernelError: A file cannot be read.
    """
    paths = {image.path for kernel in kernels for image in kernel.images}
    try:
        return {path: ImageFile(path.read_bytes()) for path in sorted(paths)}
    except OSError as error:
        raise KernelError(
            f"the image {error.filename} cannot be read: {error.strerror}"
        ) from error


def images_source(images: Iterable[ImageFile]) -> list[str]:
    """Return the lines that take the images' files into the object, each once."""
    names = sorted({image.name for image in images})
    if not names:
        return []
    # As text they would take the compiler seconds; a 0 after each ends those that are PTX.
    define = (
        "#define IMAGE(name) \\\n"
        '  __asm__(".pushsection .rodata.images,\\"a\\",@progbits\\n.balign 64\\n" \\\n'
        '          #name ":\\n.incbin \\"" #name ".bin\\"\\n.byte 0\\n.popsection\\n"); \\\n'
        '  extern const unsigned char name[] __attribute__((visibility("hidden")))'
    )
    return [define, *(f"IMAGE({name});" for name in names), ""]


def kernel_source(
    name: str,
    kernel: CudaKernel,
    tensors: int,
    size_names: Sequence[str],
    files: Mapping[Path, ImageFile],
) -> list[str]:
    """Return the lines that define the `OrtkitCudaKernel` called `name`.

    Args:
        name: An identifier that no other kernel has.
        kernel: What to launch.
        tensors: How many the op has.
        size_names: What its named sizes are called here, in their order.
        files: The code, by `Image.path`.

    Raises:
        InternalError: The kernel is not as it should be.
    """
    _check(kernel, tensors)
    lines, variants = [], []
    for number, variant in enumerate(kernel.variants):
        images = [image for image in kernel.images if image.variant == number]
        more, entry = _variant_source(f"{name}_{number}", variant, images, size_names, files)
        lines += more
        variants.append(entry)
    lines.append(f"static const OrtkitVariant {name}_variants[] = {{{', '.join(variants)}}};")
    lines.append(f"static const OrtkitCudaKernel {name} = {{{len(variants)}, {name}_variants}};")
    return lines


def _variant_source(
    name: str,
    variant: Variant,
    images: Sequence[Image],
    size_names: Sequence[str],
    files: Mapping[Path, ImageFile],
) -> tuple[list[str], str]:
    """Return the arrays of a variant, and itself as an entry of its kernel's."""
    lines = c_extents(
        f"{name}_if", [condition.extent for condition in variant.conditions], size_names
    )
    conditions = ", ".join(
        f"{{{c_extent(f'{name}_if', index, item.extent)}, {item.divisible_by}, "
        f"{'INT64_MAX' if item.at_most is None else item.at_most}}}"
        for index, item in enumerate(variant.conditions)
    )
    if conditions:
        lines.append(f"static const OrtkitCondition {name}_conditions[] = {{{conditions}}};")
    steps = []
    for number, step in enumerate(variant.steps):
        own = [image for image in images if image.step == number]
        more, entry = _step_source(f"{name}_{number}", step, own, size_names, files)
        lines += more
        steps.append(entry)
    lines.append(f"static const OrtkitStep {name}_steps[] = {{{', '.join(steps)}}};")
    lines += c_extents(f"{name}_scratch", variant.scratch, size_names)
    entry = (
        f"{{{len(variant.conditions)}, {f'{name}_conditions' if conditions else 'NULL'}, "
        f"{int(variant.aligned)}, {len(steps)}, {name}_steps, "
        f"{len(variant.scratch)}, {name}_scratch}}"
    )
    return lines, entry


def _step_source(
    name: str,
    step: Step,
    images: Sequence[Image],
    size_names: Sequence[str],
    files: Mapping[Path, ImageFile],
) -> tuple[list[str], str]:
    """Return the arrays of a launch, and itself as an entry of its variant's."""
    lines = c_extents(f"{name}_grid", [ceil_div.extent for ceil_div in step.grid], size_names)
    grid = ", ".join(
        f"{{{c_extent(f'{name}_grid', axis, item.extent)}, {item.divisor}}}"
        for axis, item in enumerate(step.grid)
    )
    parameters = (*step.arguments, *_ENDING)
    extents = [parameter.extent or ONE for parameter in parameters]
    lines += c_extents(f"{name}_sizes", extents, size_names)
    arguments = ", ".join(
        f"{{{_KINDS[argument.kind]}, {argument.index}, "
        f"{c_extent(f'{name}_sizes', index, extents[index])}}}"
        for index, argument in enumerate(parameters)
    )
    lines.append(f"static const OrtkitArgument {name}_arguments[] = {{{arguments}}};")
    code = ", ".join(
        f"{{{image.architecture}, {int(image.is_ptx)}, {files[image.path].name}, "
        f"{int(image.waits)}}}"
        for image in sorted(images, key=lambda one: (one.is_ptx, one.architecture))
    )
    lines.append(f"static const OrtkitImage {name}_images[] = {{{code}}};")
    lines += _maps_source(name, step, size_names)
    lines += _product_source(name, step.product, size_names)
    entry = (
        f"{{{c_text(step.entry)}, {{{grid}}}, {step.threads}, {step.shared_bytes}, "
        f"{len(parameters)}, {name}_arguments, {len(images)}, {name}_images, "
        f"{len(step.maps)}, {f'{name}_maps' if step.maps else 'NULL'}, "
        f"{f'&{name}_product' if step.product else 'NULL'}}}"
    )
    return lines, entry


def _product_source(name: str, product: Product | None, size_names: Sequence[str]) -> list[str]:
    """Return the matrix product that a launch computes, if it is one for a library."""
    if product is None:
        return []
    rows = c_extent(f"{name}_rows", 0, product.rows)
    return [
        *c_extents(f"{name}_rows", [product.rows], size_names),
        f"static const OrtkitProduct {name}_product = "
        f"{{{product.x}, {product.weight}, {product.y}, {product.columns}, {product.depth}, "
        f"{rows}}};",
    ]


def _maps_source(name: str, step: Step, size_names: Sequence[str]) -> list[str]:
    """Return the array of a launch's maps, if it has some."""
    lines, entries = [], []
    for number, map_ in enumerate(step.maps):
        own = f"{name}_map{number}"
        lines += c_extents(f"{own}_dims", map_.dims, size_names)
        lines += c_extents(f"{own}_strides", map_.strides, size_names)
        box = ", ".join(map(str, map_.box))
        entries.append(
            f"{{{map_.tensor}, {len(map_.dims)}, {map_.swizzle}, {map_.first}, {own}_dims, "
            f"{own}_strides, {{{box}}}}}"
        )
    if entries:
        lines.append(f"static const OrtkitTensorMap {name}_maps[] = {{{', '.join(entries)}}};")
    return lines


def _check(kernel: CudaKernel, tensors: int) -> None:
    """Raise unless the shim has room for the kernel and every number in it is possible."""
    if not 0 < len(kernel.variants) <= _MAX_VARIANTS:
        raise InternalError(f"the CUDA kernel {kernel.key} has {len(kernel.variants)} variants")
    for number, variant in enumerate(kernel.variants):
        where = f"variant {number} of the CUDA kernel {kernel.key}"
        if not 0 < len(variant.steps) <= _MAX_STEPS or len(variant.scratch) > _MAX_SCRATCH:
            raise InternalError(f"{where} has too many steps or scratch blocks, or no step")
        if any(condition.divisible_by < 1 for condition in variant.conditions):
            raise InternalError(f"{where} has a condition that no size is meant by")
        for index, step in enumerate(variant.steps):
            found = [i for i in kernel.images if (i.variant, i.step) == (number, index)]
            if not found:
                raise InternalError(f"step {index} of {where} has no image")
            _check_step(f"step {index} of {where}", step, tensors, len(variant.scratch))


def _check_step(where: str, step: Step, tensors: int, scratch: int) -> None:
    if not _ENTRY.fullmatch(step.entry):
        raise InternalError(f"{where} has the entry {step.entry!r}")
    if not 0 < step.threads <= _MAX_THREADS or step.shared_bytes < 0:
        raise InternalError(f"{where} has {step.threads} threads, {step.shared_bytes} bytes")
    if any(ceil_div.divisor < 1 for ceil_div in step.grid):
        raise InternalError(f"{where} divides its blocks by less than 1")
    if len(step.arguments) + len(_ENDING) > _MAX_ARGUMENTS:
        raise InternalError(f"{where} has {len(step.arguments)} arguments")
    most = {"tensor": tensors, "number": tensors, "scratch": scratch, "map": len(step.maps)}
    if len(step.maps) > _MAX_MAPS:
        raise InternalError(f"{where} has {len(step.maps)} maps of tensors")
    for each in step.maps:
        _check_map(where, each, tensors, scratch)
    if step.product is not None:
        _check_product(where, step.product, tensors, scratch)
    for argument in step.arguments:
        if argument.kind in most and not 0 <= argument.index < most[argument.kind]:
            raise InternalError(
                f"{where} reads {argument.kind} {argument.index}, which is not there"
            )
        if argument.kind in ("size32", "size64") and not isinstance(argument.extent, Extent):
            raise InternalError(f"{where} has an argument that is no size")


def _check_product(where: str, product: Product, tensors: int, scratch: int) -> None:
    """Raise unless a product is of tensors and scratch memory that are there."""
    is_present = (
        -scratch <= product.x < tensors
        and -scratch <= product.y < tensors
        and -scratch <= product.weight < tensors
    )
    if not is_present or not 0 < product.columns < 2**31 or not 0 < product.depth < 2**31:
        raise InternalError(f"{where} has a product of what is not there")


def _check_map(where: str, tensor_map: TensorMap, tensors: int, scratch: int) -> None:
    """Raise unless CUDA takes a map like this one, whatever its sizes are in a run."""
    factors = [stride.factor for stride in tensor_map.strides]
    if (
        not -scratch <= tensor_map.tensor < tensors
        or not 0 < len(tensor_map.dims) <= _MAX_RANK
        or (len(tensor_map.box), len(tensor_map.strides))
        != (len(tensor_map.dims), len(tensor_map.dims) - 1)
        or not all(0 < size <= _MAX_BOX for size in tensor_map.box)
        or any(number % _MAP_BYTES for number in (tensor_map.first, *factors))
        or tensor_map.first < 0
        or tensor_map.swizzle not in _SWIZZLES
    ):
        raise InternalError(f"{where} has a map of a tensor that CUDA does not take")
