"""Decoders with caches, and their inputs in the two phases of generation: prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.graph.inline import inlined
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Dim, Size, sole_atom
from ortkit.measure.inputs import usual_feeds
from ortkit.runtime.shared_caches import check_shared
from ortkit.verify.inputs.caches import Cache, caches_of, is_sliding
from ortkit.verify.inputs.feeds import Feeds, Value

_GROUPED = ("com.microsoft", "GroupQueryAttention")
#: Inputs of GroupQueryAttention with past keys and values -> outputs with present ones.
_PRESENT = {3: 1, 4: 2}
#: Tokens of a prompt where no other number is asked for.
PROMPT = 128


@dataclass(frozen=True)
class Phase:
    """One call of a decoder.

    Args:
        past: Tokens that the caches hold.
        new: Tokens that are added to them.
    """

    past: int
    new: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"prefill of {self.new}" if self.is_prefill else f"token after {self.past}"

    @property
    def slug(self) -> str:
        """The same as part of a file's name."""
        return self.name.replace(" ", "-")

    @property
    def is_prefill(self) -> bool:
        """Whether it reads a prompt."""
        return self.new > 1

    @property
    def total(self) -> int:
        """Tokens that the caches hold after it."""
        return self.past + self.new


@dataclass(frozen=True)
class CachedDecoder:
    """A decoder and what its caches are.

    Args:
        path: The model's file.
        past: Names of the sizes that are the number of past tokens.
        new: Names of the sizes that are the number of new tokens.
        growing: Caches that grow with each token, and their axis of tokens.
        windows: Caches of fixed size, which keep the newest tokens.
        share: Caches in whose memory the next ones are written, and the outputs with these.
    """

    path: Path
    past: frozenset[str]
    new: frozenset[str]
    growing: Mapping[str, int]
    windows: tuple[str, ...]
    share: Mapping[str, str]

    def feeds(self, phase: Phase) -> Iterator[Feeds]:
        """Yield inputs for a phase, the most wanted first.

        A cache that is shared has room for the new tokens.

        Raises:
            ModelError: None can be made up.
            UserError: The model takes one token at a time.
        """
        if phase.new > 1 and not self.new:
            raise UserError("takes a fixed number of new tokens", where=str(self.path))
        sizes = dict.fromkeys(self.past, phase.past) | dict.fromkeys(self.new, phase.new)
        for feeds in usual_feeds(_opened(self.path), sizes):
            yield {name: self._with_room(name, value, phase) for name, value in feeds.items()}

    def cache_bytes(self, feeds: Feeds, phase: Phase) -> int:
        """Return the bytes of all caches after a phase that was run on some inputs."""
        total = 0
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray):
                continue
            if name in self.windows:
                total += value.nbytes
            elif (axis := self.growing.get(name)) is not None:
                others = value.shape[:axis] + value.shape[axis + 1 :]
                total += int(np.prod(others)) * value.itemsize * phase.total
        return total

    def _with_room(self, name: str, value: Value, phase: Phase) -> Value:
        if name not in self.share or name not in self.growing or not isinstance(value, np.ndarray):
            return value
        shape = list(value.shape)
        shape[self.growing[name]] = phase.new
        return np.concatenate([value, np.zeros(shape, value.dtype)], self.growing[name])


def phases_of(prompt: int, pasts: Sequence[int]) -> tuple[Phase, ...]:
    """Return the prefill of a prompt, and one more token after some numbers of tokens.

    Args:
        prompt: Tokens of the prompt.
        pasts: Tokens that the caches hold; none: those of the prompt.

    Raises:
        UserError: The prompt has no token.
    """
    if prompt < 1:
        raise UserError(f"a prompt of {prompt} tokens", where="--prompt", fix="give 1 or more")
    return (Phase(0, prompt), *(Phase(past, 1) for past in pasts or (prompt,)))


def decoder_of(path: Path, *, shares: bool = True) -> CachedDecoder:
    """Find the caches of a decoder.

    Args:
        path: The model's file.
        shares: Whether caches that can be are written in place, as onnxruntime-genai does.

    Raises:
        ModelError: It is no valid model.
        UserError: It has no caches that grow.
    """
    model = _opened(path)
    shapes = Shapes.infer(model)
    caches = caches_of(model, shapes)
    past = frozenset(filter(None, (_name(each.past) for each in caches)))
    if not past:
        raise UserError(
            "has no cache that grows: no input of a named length is read as past keys by Concat, "
            "Attention, MultiHeadAttention or GroupQueryAttention",
            where=str(path),
            fix="leave out --decode and folders"
            if not caches
            else "give the length of its caches a name",
        )
    growing = {
        value.name or "": axis
        for value in model.graph.inputs
        for axis, size in enumerate(value.shape or ())
        if isinstance(size, ir.SymbolicDim) and size.value in past and value.dtype is not None
        if value.dtype.is_floating_point()
    }
    windows = tuple(
        value.name or ""
        for node in model.graph
        if (node.domain, node.op_type) == _GROUPED and is_sliding(node)
        for value in node.inputs[3:5]
        if value is not None and value.is_graph_input()
    )
    return CachedDecoder(
        path, past, _new_names(caches), growing, windows, _shared(model) if shares else {}
    )


def _opened(path: Path) -> ir.Model:
    """Open a decoder with the bodies of its fused nodes in their place: there caches are read."""
    return inlined(open_model(path))


def _name(size: Size) -> str:
    atom = sole_atom(size) if isinstance(size, Dim) else None
    return atom.label if atom is not None and atom.kind == "name" else ""


def _new_names(caches: Sequence[Cache]) -> frozenset[str]:
    return frozenset(filter(None, (_name(each.new) for each in caches)))


def _shared(model: ir.Model) -> dict[str, str]:
    """Return the caches that GroupQueryAttention writes in place, by the name of the past."""
    found: dict[str, str] = {}
    for node in model.graph:
        if (node.domain, node.op_type) != _GROUPED:
            continue
        for index, number in _PRESENT.items():
            past = node.inputs[index] if index < len(node.inputs) else None
            present = node.outputs[number] if number < len(node.outputs) else None
            if past is not None and present is not None and present.is_graph_output():
                found[past.name or ""] = present.name or ""
    try:
        check_shared(model, found)
    except UserError:  # something else reads a cache, too
        return {}
    return found
