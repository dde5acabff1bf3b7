"""Small decoders with random weights, as other producers write them.

`python -m tests.genai.producers FOLDER` writes all, without a network. The builder of
onnxruntime-genai needs torch and transformers 5, mobius-onnx needs torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.folders import add_tokenizer

#: Sizes in the words of Hugging Face's configurations, which mobius-onnx uses too.
_SIZES = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "head_dim": 16,
}  # fmt: skip
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
#: Of genai's builder, by `model_type`: the precision, and further fields of the configuration.
GENAI: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("int4", {}),
    "qwen3": ("fp32", {}),
    "gemma2": ("int4", {"sliding_window": 32}),
    "mistral": ("fp32", {"sliding_window": 32}),
}
#: Of mobius-onnx: the architecture, the execution provider it is made for, and further fields.
MOBIUS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "default", {}),
    "llama_cpu": ("llama", "cpu", {}),
    "qwen3_cpu": ("qwen3", "cpu", {"attn_qk_norm": True}),
    "falcon": ("falcon", "default", {}),
}


def genai_folder(name: str, folder: Path) -> Path:
    """Write a folder as the builder of onnxruntime-genai does.

    Args:
        name: A key of `GENAI`.
        folder: Where; made here. Beside it the checkpoint stays that the builder read.
    """
    import torch
    import transformers

    precision, given = GENAI[name]
    config = transformers.AutoConfig.for_model(name, **{**_SIZES, **_TOKENS, **given})
    torch.manual_seed(0)
    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(checkpoint)
    add_tokenizer(checkpoint)
    command = [
        sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", folder,
        "-p", precision, "-e", "cpu", "-c", folder.with_name("cache"),
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the builder failed on {name}: {done.stderr.splitlines()[-1]}")
    return folder


def mobius_model(name: str, path: Path) -> Path:
    """Write a model as mobius-onnx does, with random weights.

    Args:
        name: A key of `MOBIUS`.
        path: The file.
    """
    import mobius
    import onnx_ir as ir

    architecture, provider, given = MOBIUS[name]
    config = mobius.ArchitectureConfig(
        **{**_SIZES, "hidden_act": "silu", "pad_token_id": 0, "rope_type": "default", **given}
    )
    module = mobius.registry.get(architecture)(config)
    (model,) = mobius.build_from_module(module, config, execution_provider=provider).values()
    random = np.random.default_rng(0)
    for value in model.graph.initializers.values():
        if value.const_value is None:
            shape = [int(size) for size in value.shape]
            array = random.normal(0, 0.1, shape).astype(value.dtype.numpy())
            value.const_value = ir.tensor(array, name=value.name)
    ir.save(model, path)
    return path


def main(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(parents=True)
    for name in GENAI:
        genai_folder(name, folder / f"genai-{name}")
    for name in MOBIUS:
        mobius_model(name, folder / f"mobius-{name}.onnx")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
