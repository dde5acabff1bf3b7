"""Which models there are, and how to get one."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, cast

from ortkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

    from models.builder import Size

BUILDERS: dict[str, str] = {
    "bert": "models.bert:build",
    "gpt2": "models.gpt2:build",
    "llama": "models.llama:build",
    "decoder_kv": "models.decoder_kv:build",
    "vit": "models.vit:build",
    "whisper_encoder": "models.whisper_encoder:build",
    "resnet50": "models.resnet50:build",
    "mobilenet_v2": "models.mobilenet_v2:build",
    "efficientnet_b0": "models.efficientnet_b0:build",
    "segformer": "models.segformer:build",
    "convnext": "models.convnext:build",
    "swin": "models.swin:build",
    "restorer": "models.restorer:build",
    "pyramid": "models.pyramid:build",
    "unet": "models.unet:build",
    "detector": "models.detector:build",
    "lstm": "models.lstm:build",
    "control_flow": "models.control_flow:build",
}


def spellings(name: str) -> tuple[str, ...]:
    """Return the spellings in which a model is available, the usual one first.

    Raises:
        UserError: There is no model of that name.
    """
    return cast("tuple[str, ...]", import_module(_place(name)[0]).SPELLINGS)


def build(
    name: str, size: Size = "tiny", spelling: str = "dynamo", seed: int = 0
) -> onnx.ModelProto:
    """Build a model; the same arguments give the same bytes.

    Args:
        name: A name in `BUILDERS`.
        size: "full" has the published widths and depths, "tiny" the same structure in little.
        spelling: The exporter whose manner is followed; one of `spellings(name)`.
        seed: Decides the weights, which are the same in every spelling.

    Raises:
        UserError: There is no such model, size or spelling.
    """
    module, function = _place(name)
    if spelling not in spellings(name):
        raise UserError(
            f"{name} has no spelling {spelling!r}",
            where="--spelling",
            fix=f"choose one of {', '.join(spellings(name))}",
        )
    if size not in ("tiny", "full"):
        raise UserError(f"no size {size!r}", where="--size", fix="choose tiny or full")
    builder = getattr(import_module(module), function)
    return cast("Callable[[str, str, int], onnx.ModelProto]", builder)(size, spelling, seed)


def _place(name: str) -> tuple[str, str]:
    if name not in BUILDERS:
        near = get_close_matches(name, BUILDERS, n=1)
        hint = f"did you mean {near[0]}" if near else f"choose one of {', '.join(BUILDERS)}"
        raise UserError(f"no model is called {name!r}", where="models", fix=hint)
    module, _, function = BUILDERS[name].partition(":")
    return module, function
