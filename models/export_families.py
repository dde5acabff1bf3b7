"""Architectures of transformers with random weights, for `models.export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

VOCABULARY = 1000
SEQUENCE: Mapping[int, str] = {1: "seq"}


@dataclass(frozen=True)
class Sizes:
    """How large the models are, apart from those whose paper fixes it."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    length: int = 128
    image: int = 224

    def encoder(self) -> dict[str, int]:
        """Return the sizes under the names that BERT-like configurations use."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
        }


SMALL = Sizes(layers=2, width=64, heads=4, length=16, image=64)
FULL = Sizes()


@dataclass(frozen=True)
class Family:
    """One architecture."""

    module: Callable[[Sizes], Module]
    inputs: Callable[[Sizes], tuple[Tensor, ...]]
    dynamic: Mapping[int, str]
    """Axes of every input that are not fixed, in addition to TorchScript's batch."""


def families() -> dict[str, Family]:
    """Return the families by name; needs transformers."""
    import transformers as tf

    def llama(s: Sizes) -> Module:
        sizes = s.encoder() | {"num_hidden_layers": max(s.layers // 2, 1)}
        groups = {"num_key_value_heads": s.heads // 2}
        config = tf.LlamaConfig(vocab_size=VOCABULARY, use_cache=False, **sizes, **groups)
        return tf.LlamaModel(config)

    def gpt2(s: Sizes) -> Module:
        sizes = {"n_embd": s.width, "n_layer": s.layers, "n_head": s.heads}
        tokens = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
        return tf.GPT2Model(tf.GPT2Config(use_cache=False, **sizes, **tokens))

    return {
        "bert": Family(
            lambda s: tf.BertModel(tf.BertConfig(vocab_size=VOCABULARY, **s.encoder())),
            _ids_and_mask,
            SEQUENCE,
        ),
        "gpt2": Family(gpt2, _ids, SEQUENCE),
        "llama": Family(llama, _ids, SEQUENCE),
        # A padding mask keeps aten::diff out of the graph, which TorchScript cannot export.
        "gpt2_masked": Family(gpt2, _ids_and_mask, SEQUENCE),
        "llama_masked": Family(llama, _ids_and_mask, SEQUENCE),
        "vit": Family(
            lambda s: tf.ViTModel(tf.ViTConfig(image_size=s.image, **s.encoder())), _image, {}
        ),
        "whisper_encoder": Family(_whisper_encoder, _features, {}),
        **_image_classifiers(),
    }


def _image_classifiers() -> dict[str, Family]:
    import transformers as tf

    def resnet(s: Sizes) -> Module:
        sizes = {"depths": [1, 1, 1, 1]} if s == SMALL else {}
        return tf.ResNetModel(tf.ResNetConfig(**sizes))

    def efficientnet(s: Sizes) -> Module:
        sizes = {"width_coefficient": 1.0, "depth_coefficient": 0.3 if s == SMALL else 1.0}
        config = tf.EfficientNetConfig(image_size=s.image, hidden_dim=1280, **sizes)
        return tf.EfficientNetModel(config)

    return {
        "resnet50": Family(resnet, _image, {}),
        "mobilenet_v2": Family(
            lambda s: tf.MobileNetV2Model(tf.MobileNetV2Config(image_size=s.image)), _image, {}
        ),
        "efficientnet_b0": Family(efficientnet, _image, {}),
    }


def _whisper_encoder(s: Sizes) -> Module:
    import transformers as tf

    small = s == SMALL
    heads, inner = (4, 256) if small else (6, 1536)
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=64 if small else 384,
        encoder_layers=2 if small else 4,
        encoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_layers=1,
        decoder_attention_heads=heads,
        decoder_ffn_dim=256,
        max_source_positions=_frames(s) // 2,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    return tf.WhisperModel(config).encoder


def _frames(s: Sizes) -> int:
    return 200 if s == SMALL else 3000


def _ids(s: Sizes) -> tuple[Tensor, ...]:
    import torch

    return (torch.randint(0, VOCABULARY, (1, s.length)),)


def _ids_and_mask(s: Sizes) -> tuple[Tensor, ...]:
    import torch

    mask = torch.ones(1, s.length, dtype=torch.long)
    mask[0, s.length - 3 :] = 0
    return (*_ids(s), mask)


def _image(s: Sizes) -> tuple[Tensor, ...]:
    import torch

    return (torch.randn(1, 3, s.image, s.image),)


def _features(s: Sizes) -> tuple[Tensor, ...]:
    import torch

    return (torch.randn(1, 80, _frames(s)),)
