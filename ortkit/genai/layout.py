"""How a decoder is called: its inputs by role, and which output is the next input of a cache."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortkit.genai.folder import GenaiFolder
from ortkit.graph.io.open import open_model
from ortkit.refusal import RefusedError, refusals

#: Names where the configuration has none; `%d` is the layer.
_INPUTS = {
    "input_ids": "input_ids",
    "attention_mask": "attention_mask",
    "position_ids": "position_ids",
    "past_key_names": "past_key_values.%d.key",
    "past_value_names": "past_key_values.%d.value",
}
_OUTPUTS = {
    "logits": "logits",
    "present_key_names": "present.%d.key",
    "present_value_names": "present.%d.value",
}
#: More tokens than this no configuration means.
_MOST = 1 << 20
#: What the configuration calls the names of states that are no keys and values.
_STATE = re.compile(r"past_(\w+)_names")
_GROUPED = ("com.microsoft", "GroupQueryAttention")


@dataclass(frozen=True)
class Cache:
    """An input with earlier keys or values, or with another state of a layer.

    Args:
        past: The input.
        present: The output that becomes it.
        empty: Its sizes before the first token, for a batch of one. Those of keys and values are
            [1, heads, tokens, width], with no token unless the cache has a fixed size.
    """

    past: str
    present: str
    empty: tuple[int, ...]


@dataclass(frozen=True)
class DecoderLayout:
    """What a text decoder is fed.

    Args:
        ids: The input of tokens, [batch, new] in int64.
        mask: The input of ones for each token so far, [batch, total]; empty if there is none.
        positions: The input of positions, [batch, new]; empty if there is none.
        logits: The output, [batch, new or 1, vocabulary].
        caches: Caches of all layers.
        vocabulary: Tokens that there are.
        context: The most tokens of a sequence.
    """

    ids: str
    mask: str
    positions: str
    logits: str
    caches: tuple[Cache, ...]
    vocabulary: int
    context: int


@refusals
def layout_of(folder: GenaiFolder) -> DecoderLayout:
    """Read how the text decoder of a folder is called; refused where that is not known.

    Raises:
        ModelError: Its file is not valid.
    """
    if folder.decoder is None:
        raise RefusedError("the folder has no decoder in one file")
    return _layout(folder.config["model"], folder.model(folder.decoder))


def _layout(config: Mapping[str, Any], path: Path) -> DecoderLayout:
    decoder = config["decoder"]
    model = open_model(path)
    names = {**_INPUTS, **_strings(decoder.get("inputs"))}
    made = {**_OUTPUTS, **_strings(decoder.get("outputs"))}
    inputs = {value.name: value for value in model.graph.inputs if value.name}
    outputs = {value.name for value in model.graph.outputs if value.name}
    vocabulary = config.get("vocab_size")
    if names["input_ids"] not in inputs or made["logits"] not in outputs:
        raise RefusedError(f"it has no {names['input_ids']!r} or no {made['logits']!r}")
    if not isinstance(vocabulary, int) or not 1 <= vocabulary <= _MOST:
        raise RefusedError("its configuration has no 'vocab_size'")
    caches = []
    windows = _windows(model)
    for part in ("key", "value"):
        for layer in range(_layers(inputs, names[f"past_{part}_names"])):
            past = names[f"past_{part}_names"].replace("%d", str(layer))
            present = made[f"present_{part}_names"].replace("%d", str(layer))
            if past not in inputs:
                continue  # layers without attention
            if present not in outputs:
                raise RefusedError(f"it has no output {present!r} for {past!r}")
            caches.append(_cache(inputs[past], present, decoder, windows))
    for role in sorted(names.keys() - _INPUTS.keys()):
        state = _STATE.fullmatch(role)
        if state is not None and (output := f"present_{state[1]}_names") in made:
            caches += _states(inputs, outputs, (names[role], made[output]))
    known = {cache.past for cache in caches}
    roles = {names[role] for role in ("input_ids", "attention_mask", "position_ids")}
    others = inputs.keys() - known - roles - model.graph.initializers.keys()
    if others:
        raise RefusedError(f"what input {min(others)!r} is fed is not known")
    if not caches:
        raise RefusedError("it has no caches")
    context = config.get("context_length")
    return DecoderLayout(
        names["input_ids"],
        names["attention_mask"] if names["attention_mask"] in inputs else "",
        names["position_ids"] if names["position_ids"] in inputs else "",
        made["logits"],
        tuple(caches),
        vocabulary,
        context if isinstance(context, int) and context > 0 else 1 << 30,
    )


def _strings(part: object) -> dict[str, str]:
    found = part if isinstance(part, dict) else {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _layers(inputs: Mapping[str, ir.Value], pattern: str) -> int:
    """Return one more than the last layer that has an input of this name, as genai counts them."""
    if "%d" not in pattern:
        raise RefusedError(f"the names {pattern!r} have no %d for the layer")
    layer = re.compile(re.escape(pattern).replace("%d", "([0-9]{1,6})"))
    return 1 + max((int(found[1]) for found in map(layer.fullmatch, inputs) if found), default=-1)


def _cache(
    value: ir.Value, present: str, decoder: Mapping[str, Any], windows: Mapping[str, int]
) -> Cache:
    """Read the sizes of a cache; those without a number are in the configuration."""
    name = value.name or ""
    dims = list(value.shape or ())
    if len(dims) != 4:
        raise RefusedError(f"cache {name!r} has {len(dims)} axes, not 4")
    given = decoder.get("num_key_value_heads"), decoder.get("head_size")
    heads, width = (
        dim if isinstance(dim, int) else other
        for dim, other in zip((dims[1], dims[3]), given, strict=True)
    )
    if not isinstance(heads, int) or not isinstance(width, int):
        raise RefusedError(f"the sizes of cache {name!r} are not known")
    if isinstance(dims[2], int):
        raise RefusedError(f"cache {name!r} is a buffer of fixed length")
    return Cache(name, present, (1, heads, windows.get(name, 0), width))


def _states(
    inputs: Mapping[str, ir.Value],
    outputs: Collection[str],
    patterns: tuple[str, str],
) -> list[Cache]:
    """Find states of a fixed size, such as the last inputs of convolutions.

    Args:
        inputs: By name.
        outputs: Names.
        patterns: Names of an input and of the output that becomes it.
    """
    found = []
    for layer in range(_layers(inputs, patterns[0])):
        past, present = (each.replace("%d", str(layer)) for each in patterns)
        if past not in inputs or present not in outputs:
            continue
        _, *sizes = inputs[past].shape or (None, None)
        numbers = [size for size in sizes if isinstance(size, int)]
        if len(numbers) < len(sizes):
            raise RefusedError(f"the sizes of state {past!r} are not known")
        found.append(Cache(past, present, (1, *numbers)))
    return found


def _windows(model: ir.Model) -> dict[str, int]:
    """Return the window of each cache that keeps its newest tokens only."""
    found: dict[str, int] = {}
    for node in model.graph:
        if (node.domain, node.op_type) != _GROUPED:
            continue
        if node.attributes.get_int("sliding_window_cache", 0) == 1:
            window = node.attributes.get_int("local_window_size", 0)
            found |= {value.name or "": window for value in node.inputs[3:5] if value is not None}
    return found
