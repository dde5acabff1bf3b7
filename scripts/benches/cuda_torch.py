"""How torch runs the models of `scripts/bench cuda`: as they are, and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from scripts.benches.cuda_models import Architecture, without_mask

#: How torch compiles: its mode, whether weights are constants, whether images are channels last.
_MODES = {
    "reduce-overhead": ("reduce-overhead", False, False),
    "freezing": ("reduce-overhead", True, False),
    "max-autotune": ("max-autotune", True, False),
}
_MODES_OF_NETS = {
    "channels last": ("reduce-overhead", True, True),
    "channels last max-autotune": ("max-autotune", True, True),
}
#: The names of all ways.
MODES = tuple(_MODES | _MODES_OF_NETS)


def modes(architecture: Architecture, wanted: Sequence[str] = ()) -> list[str]:
    """Return the ways in which torch compiles a model: for its sizes, which have one row.

    Args:
        architecture: The model.
        wanted: Those that are asked for; all if empty.
    """
    if architecture.is_dynamic:
        return []
    known = [*_MODES, *(_MODES_OF_NETS if architecture.is_net else ())]
    return [mode for mode in known if mode in (wanted or known)]


def compiled(architecture: Architecture, name: str) -> Callable[[], object]:
    """Let torch compile a model; weights that are constants need a module of their own."""
    import torch
    import torch._dynamo
    import torch._inductor.config

    mode, is_frozen, is_channels_last = (_MODES | _MODES_OF_NETS)[name]
    module, example = copy.deepcopy(architecture.module), architecture.example
    without_mask(module)
    if is_channels_last:
        module = module.to(memory_format=torch.channels_last)
        example = example.to(memory_format=torch.channels_last)
    torch._dynamo.reset()
    made = torch.compile(module, mode=mode)
    call = synchronized(lambda: made(example))
    with torch._inductor.config.patch(freezing=is_frozen):
        for _ in range(3):
            call()
    return call


def synchronized(run: Callable[[], Any]) -> Callable[[], None]:
    """Return a call that ends when the device is done."""
    import torch

    def call() -> None:
        with torch.no_grad():
            run()
        torch.cuda.synchronize()

    return call
