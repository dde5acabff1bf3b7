"""Programs that `torch.onnx.export` returns, with our model in them: calls run on our kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.optimization.call import Optimized, OptimizeOptions
from ortkit.optimization.call import optimize as optimize_model
from ortkit.runtime.library_target import target_entry
from ortkit.runtime.ort import import_onnxruntime
from ortkit.runtime.targets import resolve


class OnnxProgram(Protocol):
    """A `torch.onnx.ONNXProgram`."""

    model: ir.Model
    exported_program: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on tensors."""
        ...


def is_onnx_program(source: object) -> bool:
    """Say whether something is what `torch.onnx.export` returns; does not import torch."""
    torch = sys.modules.get("torch")
    kind = getattr(getattr(torch, "onnx", None), "ONNXProgram", None)
    return kind is not None and isinstance(source, kind)


def optimize_program(program: OnnxProgram, options: OptimizeOptions | None) -> OnnxProgram:
    """Return a program with the optimized model, which calls run with its kernels.

    The program that is given stays as it is. The result has the attribute `optimized`, with the
    report; its `save` writes the kernel library beside the model.

    Args:
        program: A `torch.onnx.ONNXProgram`.
        options: As for `optimize`.

    Raises:
        UserError: The program has no weights, as one that was exported in fake mode.
    """
    for value in program.model.graph.initializers.values():
        if value.const_value is None:
            raise UserError(
                f"the program has no value for {value.name!r}",
                fix="call its apply_weights(state_dict) first",
            )
    return _class()(optimize_model(program.model, options), program.exported_program)


@cache
def _class() -> Callable[[Optimized, Any], OnnxProgram]:
    """Return the class of such programs: torch is there, or nobody had one to give."""
    import torch

    class OptimizedProgram(torch.onnx.ONNXProgram):  # type: ignore[misc]
        """A program whose session runs the kernels of its model."""

        def __init__(self, optimized: Optimized, exported_program: Any) -> None:
            super().__init__(optimized.model, exported_program)
            self.optimized = optimized

        def initialize_inference_session(
            self, initializer: Callable[[str | bytes], Any] | None = None
        ) -> None:
            """Make the session; an initializer of the caller's own knows nothing of kernels."""
            super().initialize_inference_session(initializer or self._session)

        def _session(self, model: str | bytes) -> Any:
            ort = import_onnxruntime()
            options = ort.SessionOptions()
            options.log_severity_level = 3  # as torch has it: errors only
            target = self.optimized.report.target
            wanted = [provider.name for provider in resolve(target, ort, fallback=False).wanted]
            options.add_session_config_entry(*target_entry(wanted))
            if self.optimized.library is not None:
                options.register_custom_ops_library(str(self.optimized.library))
            return ort.InferenceSession(model, options, providers=wanted)

        def save(self, destination: Any, **given: Any) -> None:
            """Write the model with its library beside it; keywords are those of torch."""
            if given:
                super().save(destination, **given)
            else:
                self.optimized.save(destination)

    return OptimizedProgram
