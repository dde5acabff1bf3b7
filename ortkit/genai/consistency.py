"""Whether numbers and names of a configuration are those of the text decoder's model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.genai.folder import CONFIG, GenaiFolder
from ortkit.graph.inline import inlined
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes

_NAMES = ("input_ids", "inputs_embeds"), ("logits",)
_CACHE_INPUTS, _CACHE_OUTPUTS = (
    tuple(f"{when}_{part}_names" for part in ("key", "value")) for when in ("past", "present")
)


def check_decoder(folder: GenaiFolder) -> tuple[str, ...]:
    """Compare the configuration of the text decoder with its model, without running it.

    Returns:
        What onnxruntime-genai reads from the model instead (0.18), so that a wrong number does no
        harm there; one sentence each.

    Raises:
        ModelError: onnxruntime-genai cannot run the model with this configuration, or the model
            is not valid.
    """
    if folder.decoder is None:
        return ()
    config, where = folder.config["model"], str(folder.path / CONFIG)
    decoder = config["decoder"]
    for part, name in ((config, "vocab_size"), (config, "context_length")):
        if name in part and _positive(part[name]) is None:
            raise ModelError(f"{name} is {part[name]!r}, not a number above 0", where=where)
    model = inlined(open_model(folder.model(folder.decoder)))
    shapes = Shapes.infer(model)
    if problem := next(_problems(config, decoder, model, shapes), ""):
        raise ModelError(problem, where=where, fix="write the numbers and names of the model")
    return tuple(_notes(decoder, model, shapes))


def _problems(
    config: Mapping[str, Any], decoder: Mapping[str, Any], model: ir.Model, shapes: Shapes
) -> Iterator[str]:
    """Find what onnxruntime-genai stops at."""
    inputs, outputs = decoder.get("inputs"), decoder.get("outputs")
    yield from _unknown(inputs, model.graph.inputs, "input", _NAMES[0], _CACHE_INPUTS)
    yield from _unknown(outputs, model.graph.outputs, "output", _NAMES[1], _CACHE_OUTPUTS)
    logits = _named(outputs, "logits", "logits")
    for value in model.graph.outputs:
        shape = shapes.shape(value) if value.name == logits else None
        number = _positive(config.get("vocab_size"))
        if shape and isinstance(shape[-1], int) and shape[-1] != number:
            said = "missing" if number is None else str(number)
            yield f"vocab_size is {said}, and the model has logits of {shape[-1]} tokens"
    number = _positive(decoder.get("head_size"))
    for name, declared, found in _widths(decoder, model, shapes):
        if number is not None and not isinstance(declared, int) and found != number:
            yield f"head_size is {number}, and heads of cache {name!r} have {found} elements"


def _notes(decoder: Mapping[str, Any], model: ir.Model, shapes: Shapes) -> Iterator[str]:
    layers = decoder.get("num_hidden_layers")
    names = [value.name or "" for value in model.graph.inputs]
    found = 1 + max((_layer(name, decoder) for name in names), default=-1)
    if isinstance(layers, int) and found and layers != found:
        yield f"num_hidden_layers is {layers}, and the model has caches of {found} layers"
    number = _positive(decoder.get("head_size"))
    widths = {found for _, _, found in _widths(decoder, model, shapes)}
    if number is not None and widths and number not in widths:
        yield f"head_size is {number}, and heads of the model have {min(widths)} elements"
    number = _positive(decoder.get("num_key_value_heads"))
    heads = {each for each in _heads(decoder, model, shapes) if isinstance(each, int)}
    if number is not None and heads and number not in heads:
        yield f"num_key_value_heads is {number}, and caches of the model have {min(heads)}"


def _layer(name: str, decoder: Mapping[str, Any]) -> int:
    """Return the layer whose cache or other state an input is; -1 if it is none."""
    number = decoder.get("inputs")
    given = number if isinstance(number, dict) else {}
    templates = {"past_key_names": "past_key_values.%d.key", **given}
    for role, template in templates.items():
        if role.startswith("past_") and isinstance(template, str):
            match = _pattern(template).fullmatch(name)
            if match is not None and match.groups():
                return int(match[1])
    return -1


def _unknown(
    part: object,
    values: Iterable[ir.Value],
    kind: str,
    roles: tuple[str, ...],
    patterns: tuple[str, ...],
) -> Iterator[str]:
    """Find names that the configuration has and the model has not."""
    names = [value.name or "" for value in values]
    for role in roles:
        if (name := _named(part, role, "")) and name not in names:
            yield f"{role} is {name!r}, and the model has no such {kind}"
    for role in patterns:
        name = _named(part, role, "")
        if name and not any(map(_pattern(name).fullmatch, names)):
            yield f"{role} is {name!r}, and the model has no such {kind}"


def _caches(
    decoder: Mapping[str, Any], model: ir.Model, shapes: Shapes
) -> Iterator[tuple[ir.Value, tuple[Any, ...]]]:
    """Yield present keys and values with their inferred shapes, [batch, heads, tokens, width]."""
    for role, usual in zip(_CACHE_OUTPUTS, ("present.%d.key", "present.%d.value"), strict=True):
        pattern = _pattern(_named(decoder.get("outputs"), role, usual))
        for value in model.graph.outputs:
            shape = shapes.shape(value)
            if pattern.fullmatch(value.name or "") and shape is not None and len(shape) == 4:
                yield value, shape


def _widths(
    decoder: Mapping[str, Any], model: ir.Model, shapes: Shapes
) -> Iterator[tuple[str, object, int]]:
    """Yield each cache's name, the declared size of its heads, and the size that follows."""
    for value, shape in _caches(decoder, model, shapes):
        if isinstance(shape[3], int):
            yield value.name or "", (value.shape or [None])[-1], shape[3]


def _heads(decoder: Mapping[str, Any], model: ir.Model, shapes: Shapes) -> Iterator[Any]:
    return (shape[1] for _, shape in _caches(decoder, model, shapes))


def _pattern(name: str) -> re.Pattern[str]:
    """Return what names of a template match; `%d` is the layer."""
    return re.compile(re.escape(name).replace("%d", "([0-9]{1,9})"))


def _named(part: object, role: str, usual: str) -> str:
    found = part.get(role) if isinstance(part, dict) else None
    return found if isinstance(found, str) else usual


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
