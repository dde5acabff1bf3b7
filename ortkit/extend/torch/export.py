"""A PyTorch module as an ONNX model, with the ops that are declared as nodes of their own."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.extend.declare.op import CustomOp, declared_ops
from ortkit.passes.inline_functions import KEPT_KEY

_FUNCTIONS_SINCE_IR = 9


def is_torch_module(source: object) -> bool:
    """Say whether something is a module or an exported program of torch; does not import it."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    export = getattr(torch, "export", None)
    program = getattr(export, "ExportedProgram", ())
    return isinstance(source, (torch.nn.Module, program))


def export_module(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> ir.Model:
    """Export a module to ONNX, as `torch.onnx.export(dynamo=True)` does, in evaluation mode.

    Ops that were registered with `op.torch()` become nodes of their own, with their bodies as the
    model's functions where they have some.

    Args:
        module: A `torch.nn.Module`, or an `ExportedProgram`.
        args: What it is called with, as an example.
        kwargs: And by name.
        dynamic_shapes: As in `torch.export.export`: which sizes may differ in other calls.

    Raises:
        UserError: torch cannot export it.
    """
    import torch

    from ortkit.extend.torch.op import translations

    modules = list(module.modules()) if isinstance(module, torch.nn.Module) else []
    training = [module for module in modules if module.training]
    for one in training:
        one.training = False
    try:
        with _quiet():
            program = torch.onnx.export(
                module, args, kwargs=dict(kwargs or {}), dynamo=True, verbose=False,
                dynamic_shapes=dynamic_shapes, custom_translation_table=translations(),
            )  # fmt: skip
    except Exception as error:  # torch's own classes, of many kinds
        cause: BaseException = error.__cause__ or error
        line = next((item.strip() for item in str(cause).splitlines() if item.strip()), "")
        raise UserError(
            f"torch cannot export the module: {type(cause).__name__}: {line}",
            fix="try torch.export.export on it, which says more",
        ) from error
    finally:
        for one in training:
            one.training = True
    model = program.model
    assert isinstance(model, ir.Model)
    for op in declared_ops():
        _add_body(model, op)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch says while it exports: ops it has not, graphs that it cannot trace."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _add_body(model: ir.Model, op: CustomOp) -> None:
    """Put an op's body into the model as its function, if the model has it and it has one."""
    nodes = [node for node in model.graph.all_nodes() if node.op_identifier()[:2] == _key(op)]
    opset = model.opset_imports.get("")
    if not nodes or opset is None:
        return
    there = [value is not None for value in nodes[0].inputs]
    body = op.function(opset, there)
    if body is None or any(None in node.inputs or len(node.inputs) < len(there) for node in nodes):
        return
    function = ir.serde.deserialize_function(body)
    function.metadata_props[KEPT_KEY] = op.id
    model.functions[function.identifier()] = function
    model.opset_imports[op.domain] = op.version
    model.ir_version = max(model.ir_version, _FUNCTIONS_SINCE_IR)


def _key(op: CustomOp) -> tuple[str, str]:
    return op.domain, op.name
