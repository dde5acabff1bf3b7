"""The models of `scripts/bench cuda`: known architectures with random weights, made by torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_VOCABULARY, _TOKENS, _PIXELS = 1000, 512, 224
#: The name of attention without a mask.
_UNMASKED = "unmasked"
#: Of an export with sizes that are not fixed: rows, and words of one.
SIZES = ("batch", "length")


@dataclass(frozen=True)
class Architecture:
    """One model.

    Args:
        name: Of the table's row.
        module: A torch module in float16 on the GPU, in inference mode.
        example: Its one input, on the GPU.
        is_dynamic: Whether the batch, and of words their number, are named in the export.
    """

    name: str
    module: Any
    example: Any
    is_dynamic: bool = False

    @property
    def is_net(self) -> bool:
        """Whether it is a convolution net."""
        import torch

        return any(isinstance(module, torch.nn.BatchNorm2d) for module in self.module.modules())

    @property
    def sizes(self) -> dict[str, int]:
        """The named sizes of the export."""
        names = SIZES if not self.example.is_floating_point() else SIZES[:1]
        return dict(zip(names, self.example.shape, strict=False)) if self.is_dynamic else {}

    def export(self, path: Path) -> None:
        """Write the model as torch's exporter writes it."""
        import torch

        shapes, example = None, self.example
        if self.is_dynamic:
            # A size of 1 would be taken for a fixed one.
            example = (
                example if len(example) > 1 else example.repeat(2, *[1] * (example.dim() - 1))
            )
            shapes = ({axis: torch.export.Dim(name) for axis, name in enumerate(self.sizes)},)
        with torch.no_grad():
            torch.onnx.export(
                self.module, (example,), path, dynamo=True, input_names=["x"],
                output_names=["y"], opset_version=20, verbose=False, external_data=True,
                dynamic_shapes=shapes,
            )  # fmt: skip


def names(only: str) -> list[str]:
    """Return the names of models in which the regular expression `only` is found."""
    return [name for name in _MAKERS if re.search(only, name)]


def title(name: str, *, is_dynamic: bool) -> str:
    """Return what a model is called in the tables."""
    return f"{name}, dynamic" if is_dynamic else name


def architecture(name: str, batch: int, *, is_dynamic: bool) -> Architecture:
    """Make one of `names`; nets need torchvision."""
    import torch

    torch.manual_seed(0)
    module, example = _MAKERS[name]()
    module = module.eval().half().cuda()
    example = example.repeat(batch, *[1] * (example.dim() - 1)).cuda()
    if example.is_floating_point():
        example = torch.randn_like(example).half()
    return Architecture(title(name, is_dynamic=is_dynamic), module, example, is_dynamic)


def without_mask(module: Any) -> None:
    """Let a model of transformers attend to all keys, or to those before, without a mask.

    These inputs have no padding. While torch compiles, transformers cannot see that and makes a
    mask, with which torch's attention is several kernels in float32.
    """
    inner = getattr(module, "model", None)
    if hasattr(inner, "set_attn_implementation"):
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_MASK_ATTENTION_FUNCTIONS.register(_UNMASKED, lambda *_, **__: None)
        ALL_ATTENTION_FUNCTIONS.register(_UNMASKED, _attention)
        inner.set_attn_implementation(_UNMASKED)


def _attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any
) -> tuple[Any, None]:
    """Attend as transformers' own function does: [batch, heads, length, width] three times."""
    import torch

    assert mask is None
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=bool(getattr(module, "is_causal", False)),
        scale=options.get("scaling"), enable_gqa=key.shape[1] != query.shape[1],
    )  # fmt: skip
    return found.transpose(1, 2).contiguous(), None


def _last_hidden(model: Any) -> Any:
    import torch

    class Last(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return self.model(x).last_hidden_state

    return Last()


def _bert() -> tuple[Any, Any]:
    import torch
    from transformers import BertConfig, BertModel

    return _last_hidden(BertModel(BertConfig())), torch.randint(0, _VOCABULARY, (1, _TOKENS))


def _vit() -> tuple[Any, Any]:
    import torch
    from transformers import ViTConfig, ViTModel

    return _last_hidden(ViTModel(ViTConfig())), torch.randn(1, 3, _PIXELS, _PIXELS)


def _llama() -> tuple[Any, Any]:
    import torch
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=_VOCABULARY, use_cache=False,
    )  # fmt: skip
    return _last_hidden(LlamaModel(config)), torch.randint(0, _VOCABULARY, (1, _TOKENS))


def _net(name: str) -> tuple[Any, Any]:
    """Make one of torchvision's, its batch norms with statistics of noise: values stay finite."""
    import torch
    import torchvision

    module = torchvision.models.get_model(name).cuda().train()
    for norm in module.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.momentum = None
    with torch.no_grad():
        for _ in range(3):
            module(torch.randn(16, 3, _PIXELS, _PIXELS, device="cuda"))
    return module, torch.randn(1, 3, _PIXELS, _PIXELS)


_MAKERS: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "bert-base, 512 tokens": _bert,
    "vit-base": _vit,
    "llama-like, 8 layers of 2048": _llama,
    "mobilenet_v3_large": lambda: _net("mobilenet_v3_large"),
    "efficientnet_b0": lambda: _net("efficientnet_b0"),
    "resnet50": lambda: _net("resnet50"),
}
