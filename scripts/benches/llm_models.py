"""Decoders with random weights of the same sizes for onnxruntime-genai and for llama.cpp.

Needs torch, transformers and onnxruntime-genai for the first, and gguf for the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

#: Of llama.cpp's Q4_0: a scale in float16 and 32 weights in 16 bytes.
Q4_BLOCK, _Q4_BYTES = 32, 18


@dataclass(frozen=True)
class Sizes:
    """A Llama: 1B-like layers by default."""

    layers: int = 4
    width: int = 2048
    hidden: int = 8192
    heads: int = 32
    kv_heads: int = 8
    words: int = 32000
    context: int = 4096
    block: int = Q4_BLOCK
    """Weights of a scale in onnxruntime-genai's folder."""

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of keys and values of some tokens, in float32."""
        return 2 * 4 * self.layers * self.kv_heads * self.width // self.heads * tokens


def weights_of(path: Path) -> tuple[int, int]:
    """Return the bytes of a model's weights, and of those that each token reads whole.

    Embeddings are read a row a token; where a product reads them too they count.

    Args:
        path: A folder of onnxruntime-genai, or a model of llama.cpp in Q4_0.
    """
    if path.is_file():
        import gguf

        sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
        return sum(sizes.values()), sum(sizes.values()) - sizes["token_embd.weight"]
    model = onnx.load(path / "model.onnx", load_external_data=False)
    sizes = {
        tensor.name: prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in model.graph.initializer
    }
    readers = [
        (name, node.op_type) for node in model.graph.node for name in node.input if name in sizes
    ]
    whole = {name for name, kind in readers if not kind.startswith("Gather")}
    return sum(sizes.values()), sum(sizes[name] for name in whole)


def genai_folder(sizes: Sizes, folder: Path) -> None:
    """Write a folder in int4 as the builder of onnxruntime-genai does."""
    import tokenizers
    import torch
    import transformers

    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=sizes.words, hidden_size=sizes.width, intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads, max_position_embeddings=sizes.context,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(checkpoint)
    words = tokenizers.models.BPE(vocab={f"t{i}": i for i in range(sizes.words)}, merges=[])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words), bos_token="t0", eos_token="t1",
        pad_token="t1",
    ).save_pretrained(checkpoint)  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", folder,
         "-p", "int4", "-e", "cpu", "-c", folder.with_name("cache"),
         "--extra_options", f"block_size={sizes.block}"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, capture_output=True,
    )  # fmt: skip


def gguf_file(sizes: Sizes, path: Path) -> None:
    """Write the same decoder in Q4_0 for llama.cpp."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(sizes.context)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(sizes.width // sizes.heads)
    writer.add_vocab_size(sizes.words)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}".encode() for i in range(sizes.words)])
    writer.add_token_scores([0.0] * sizes.words)
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * sizes.words)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    random = np.random.default_rng(0)

    def product(name: str, rows: int, depth: int) -> None:
        blocks = random.integers(0, 256, (rows, depth // Q4_BLOCK, _Q4_BYTES), np.uint8)
        scale = np.float16(0.4 / np.sqrt(depth))
        blocks[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
        writer.add_tensor(
            f"{name}.weight", blocks.reshape(rows, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0
        )

    ones = np.ones(sizes.width, np.float32)
    kv_width = sizes.width // sizes.heads * sizes.kv_heads
    product("token_embd", sizes.words, sizes.width)
    product("output", sizes.words, sizes.width)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(sizes.layers):
        at = f"blk.{layer}"
        writer.add_tensor(f"{at}.attn_norm.weight", ones)
        writer.add_tensor(f"{at}.ffn_norm.weight", ones)
        product(f"{at}.attn_q", sizes.width, sizes.width)
        product(f"{at}.attn_k", kv_width, sizes.width)
        product(f"{at}.attn_v", kv_width, sizes.width)
        product(f"{at}.attn_output", sizes.width, sizes.width)
        product(f"{at}.ffn_gate", sizes.hidden, sizes.width)
        product(f"{at}.ffn_up", sizes.hidden, sizes.width)
        product(f"{at}.ffn_down", sizes.width, sizes.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
