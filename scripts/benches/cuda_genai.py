"""Decoders on a GPU in onnxruntime-genai: a folder of its builder's form beside the optimized one.

Each folder has a process, and the two take turns. A token is a CUDA graph that
onnxruntime-genai captures, with sampling and the copy of the logits behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import onnx

import ortkit
from scripts.benches import output
from scripts.benches.cuda_decode import DECODERS, ROOM, WORDS, Decoder
from scripts.benches.llm import Engine
from scripts.benches.llm_models import Sizes
from scripts.benches.llm_rows import Row
from scripts.benches.output import Cell

#: Tokens of a prompt, and new ones behind it.
_PROMPTS, _NEW = (16, 2048), 64


def write_folder(of: Decoder, folder: Path) -> None:
    """Write a decoder and its `genai_config.json`; tokens are given, so it has no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    where = folder / "model.onnx"
    onnx.save(of.model(), where, save_as_external_data=True, location=f"{where.name}.data")
    (folder / "genai_config.json").write_text(json.dumps(_config(of), indent=4) + "\n")


def _config(of: Decoder) -> dict[str, Any]:
    options = {"provider_options": [{"cuda": {"enable_cuda_graph": "1"}}]}
    past, present = (
        {f"{when}_{kind}_names": f"{name}.%d.{kind}" for kind in ("key", "value")}
        for when, name in (("past", "past_key_values"), ("present", "present"))
    )
    return {
        "model": {
            "type": "llama", "vocab_size": WORDS, "context_length": ROOM,
            "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
            "decoder": {
                "session_options": options, "filename": "model.onnx",
                "head_size": of.width // of.heads, "hidden_size": of.width,
                "num_attention_heads": of.heads, "num_hidden_layers": of.layers,
                "num_key_value_heads": of.kv_heads,
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"} | past,
                "outputs": {"logits": "logits"} | present,
            },
        },
        "search": {"max_length": ROOM, "past_present_share_buffer": True},
    }  # fmt: skip


def measure_genai(
    folder: Path, arch: str, rounds: int, chosen: Iterable[Decoder] = DECODERS
) -> list[dict[str, Any]]:
    """Time prompts and tokens behind them in onnxruntime-genai; milliseconds, medians."""
    return [
        row
        for of in chosen
        for row in _rows(of, _prepared(of, folder / f"genai-{of.name}-{of.bits}", arch), rounds)
    ]


def _prepared(of: Decoder, plain: Path, arch: str) -> dict[str, Path]:
    """Write what is missing, and return the folders by name."""
    ours = plain.with_name(f"{plain.name}.opt")
    if not plain.is_dir():
        write_folder(of, plain)
    if not ours.is_dir():
        options = ortkit.OptimizeOptions(target="cuda", arch=arch, verify=False)
        ortkit.optimize_genai(plain, ours, options)
    return {"genai": plain, "ortkit": ours}


def _rows(of: Decoder, folders: dict[str, Path], rounds: int) -> list[dict[str, Any]]:
    sizes = Sizes(words=WORDS, context=ROOM)
    with ExitStack() as stack:
        engines = [
            stack.enter_context(Engine(Row(name, "genai", path, 0), sizes))
            for name, path in folders.items()
        ]
        for prompt in _PROMPTS:
            for engine in engines:
                engine.warm_up(prompt)
        for _ in range(rounds):
            for prompt in _PROMPTS:
                for engine in engines:
                    engine.decode(prompt, _NEW)
    found = []
    for prompt in _PROMPTS:
        theirs, ours = (engine.new[prompt] for engine in engines)
        same = sum(one == other for one, other in zip(theirs, ours, strict=True))
        row: dict[str, Any] = {
            "model": of.name, "bits": of.bits, "prompt": prompt, "same": [same, len(ours)],
        }  # fmt: skip
        for engine in engines:
            tokens = median(engine.row.token_ms[prompt])
            row[engine.row.name] = [median(engine.row.prefill_ms[prompt]), tokens]
        rate = of.bytes_of_token(prompt) / row["ortkit"][1] / 1e6
        found.append(row | {"bytes_per_ns": rate})
        output.say(f"{of.title}, {prompt}: {row['genai']}, {row['ortkit']} ms, same {row['same']}")
    return found


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the table: times of a prompt and of a token behind it, and what is gained."""
    header = [
        "decoder", "prompt", "genai, ms", "ours, ms", "gain", "token: genai, ms", "ours, ms",
        "gain", "bytes/ns", "same tokens",
    ]  # fmt: skip
    table: list[list[Cell]] = []
    for row in rows:
        (prefill, token), (our_prefill, our_token) = row["genai"], row["ortkit"]
        table.append(
            [
                f"{row['model']}, {row['bits']} bits", row["prompt"],
                prefill, our_prefill, prefill / our_prefill,
                token, our_token, token / our_token, row["bytes_per_ns"],
                " of ".join(map(str, row["same"])),
            ]
        )  # fmt: skip
    return header, table
