"""Small folders of onnxruntime-genai, without a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx

from tests.verify.genai_model import GROUPS, HEAD, HEADS, WIDTH, WORDS, genai_model

LAYERS = 2


def genai_folder(path: Path, model: onnx.ModelProto | None = None, **options: Any) -> Path:
    """Write one as genai's builder writes it, and return it.

    Args:
        path: The folder, made here.
        model: The decoder; by default one in int4.
        options: Of `genai_model`.
    """
    path.mkdir(parents=True)
    onnx.save(model or genai_model(layers=LAYERS, **options), path / "model.onnx")
    (path / "notes.txt").write_text("a file that is no model")
    (path / "genai_config.json").write_text(json.dumps(config()))
    return path


def add_tokenizer(folder: Path) -> None:
    """Let each letter, and the space as the letter that bytes are written as, be a token."""
    vocabulary = {letter: 2 + index for index, letter in enumerate("Ġabcdefghijklmnopqrstuvwxyz")}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {**level, "use_regex": True},
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def config() -> dict[str, Any]:
    return {
        "model": {
            "bos_token_id": 0,
            "context_length": 256,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": HEAD,
                "hidden_size": WIDTH,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": HEADS,
                "num_hidden_layers": LAYERS,
                "num_key_value_heads": GROUPS,
            },
            "eos_token_id": 1,
            "pad_token_id": 1,
            "type": "llama",
            "vocab_size": WORDS,
        },
        "search": {"do_sample": False, "max_length": 256, "past_present_share_buffer": True},
    }
