"""`ortkit.optimize`: one call for what is a model already, and for what becomes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from ortkit.errors import UserError
from ortkit.optimization.call import Optimized, OptimizeOptions, Source
from ortkit.optimization.call import optimize as optimize_model
from ortkit.optimization.options import KernelChoice, Precision
from ortkit.optimization.torch_program import OnnxProgram, is_onnx_program, optimize_program
from ortkit.targets.catalog import Kind
from ortkit.verify.inputs.covering import Level


class Common(TypedDict, total=False):
    """What `optimize` takes as keywords: the options that are asked for most."""

    target: Kind
    level: int
    precision: Precision
    passes: str
    kernels: KernelChoice
    verify: bool | Level
    measure: bool
    timing: bool
    inputs: Path | None
    shapes: Mapping[str, int]
    threads: int


@overload
def optimize(
    source: Source, args: OptimizeOptions | None = None, **common: Unpack[Common]
) -> Optimized: ...


@overload
def optimize(
    source: OnnxProgram, args: OptimizeOptions | None = None, **common: Unpack[Common]
) -> OnnxProgram: ...


@overload
def optimize(
    source: Any,
    args: Any = None,
    options: OptimizeOptions | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **common: Unpack[Common],
) -> Optimized: ...


def optimize(
    source: Any,
    args: Any = None,
    options: OptimizeOptions | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    **common: Unpack[Common],
) -> Optimized | OnnxProgram:
    """Rewrite, fuse and verify a model. The source is never changed.

    `ortkit.optimize("model.onnx", level=3, verify="full")` needs no `OptimizeOptions`.

    Args:
        source: A path, a serialized model, a `ModelProto`, an `ir.Model`; or a `torch.nn.Module`
            or `torch.export.ExportedProgram`, which is exported first. For a program of
            `torch.onnx.export` a program is returned, whose calls run on the kernels.
        args: Of a module: the tensors that it is called with, as an example. Else the options.
        options: How; see `OptimizeOptions`.
        kwargs: Of a module: what it is called with by name.
        dynamic_shapes: Of a module: which sizes may differ, as in `torch.export.export`.
        common: Fields of `OptimizeOptions` in addition to the options; see `Common`.

    Raises:
        TypeError: A keyword is no field of `OptimizeOptions`.
        ModelError: The source is not a valid model.
        UserError: The options ask for something that cannot be, or torch cannot export the module.
        MissingDependencyError: A runtime that is needed is not installed.
        InternalError: A bug in ortkit.
    """
    from ortkit.extend.torch.export import export_module, is_torch_module

    if is_torch_module(source):
        if args is None and kwargs is None and isinstance(source, _module_class()):
            raise UserError(
                "a module is exported with example inputs, and there are none",
                fix="ortkit.optimize(module, (x,))",
            )
        given = args if isinstance(args, tuple) else () if args is None else (args,)
        model = export_module(source, given, kwargs, dynamic_shapes)
        return optimize_model(model, _with(options, common))
    if kwargs is not None or dynamic_shapes is not None:
        raise UserError(
            "kwargs and dynamic_shapes are for PyTorch modules, and this is "
            f"{type(source).__name__}"
        )
    if isinstance(args, str | Path):
        raise UserError(
            "a file to write is not an argument", fix="ortkit.optimize(model).save(path)"
        )
    if args is not None and not isinstance(args, OptimizeOptions):
        raise UserError(
            f"example inputs are for PyTorch modules, and this is {type(source).__name__}",
            fix="put it into the forward of a torch.nn.Module" if callable(source)
            else "ortkit.optimize(model, OptimizeOptions(...))",
        )  # fmt: skip
    if args is not None and options is not None:
        raise UserError("there are options twice")
    if is_onnx_program(source):
        return optimize_program(source, _with(options or args, common))
    return optimize_model(source, _with(options or args, common))


def _with(options: OptimizeOptions | None, common: Common) -> OptimizeOptions | None:
    return replace(options or OptimizeOptions(), **common) if common else options


def _module_class() -> type:
    import torch

    found: type = torch.nn.Module
    return found
