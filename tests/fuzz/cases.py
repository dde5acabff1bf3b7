"""Malformed models on disk: damaged by chance, and written by hand where chance finds nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto

from ortkit.graph.io.text import format_text
from tests.fuzz.mutations import DAMAGES, change_text_format

_TEXTS = (".onnxtxt", ".textproto", ".json")
_PLACES = (
    "", ".", "..", "../w.data", "/etc/passwd", "/dev/zero", "/dev/stdin", "fifo", "folder", "link",
    "device", "missing", "a\0b", "w.data\n", "w.data/x", "~", "C:\\w", "w" * 5000, "m.onnx",
)  # fmt: skip
_OFFSETS = ("0", "1", "3", "-1", "", "x", "4096", str(2**62), str(2**64), "0x10", " 1")


def write_case(folder: Path, seeds: Sequence[onnx.ModelProto], number: int) -> Path:
    """Write the malformed model of this number into a new folder; return its file."""
    folder.mkdir(parents=True)
    chance = random.Random(number)
    model = onnx.ModelProto()
    # The first are ours and hold what is rare.
    model.CopyFrom(chance.choice(seeds[:10] if number % 2 else seeds))
    if number % 10 == 9:
        return _outside(folder, model, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        damage = chance.choice(DAMAGES)
        if damage is change_text_format:
            return _text(folder, model, chance)
        data = damage(chance, model)
        if data is not None:
            return _written(folder, data)
    return _written(folder, model.SerializeToString())


def _written(folder: Path, data: bytes) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(data)
    return path


def _text(folder: Path, model: onnx.ModelProto, chance: random.Random) -> Path:
    suffix = chance.choice(_TEXTS)
    try:
        text = format_text(model, suffix).decode()
    except Exception:  # noqa: BLE001  ONNX text has no form for what was damaged before
        suffix = ".textproto"
        text = format_text(model, suffix).decode()
    at, other = sorted(chance.randrange(len(text)) for _ in range(2))
    changes: list[Callable[[], str]] = [
        lambda: text[:at],
        lambda: text[:at] + text[other:],
        lambda: text[:at] + chance.choice("({[<\"'\\9é\0") + text[at:],
        lambda: text[:at] + "(" * 5000 + text[at:],
        lambda: text.replace("1", "9" * 400, 1),
    ]
    path = folder / f"m{suffix}"
    path.write_text(chance.choice(changes)(), encoding="utf-8")
    return path


def _outside(folder: Path, model: onnx.ModelProto, chance: random.Random) -> Path:
    """Let a weight lie in a file: another one, outside, cut off, or no file at all."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "device").symlink_to("/dev/zero")
    (folder / "w.data").write_bytes(bytes(chance.randrange(300)))
    if not model.graph.initializer:
        model.graph.initializer.add(name="w", dims=[2], data_type=TensorProto.FLOAT)
    for tensor in model.graph.initializer:
        if len(model.graph.initializer) > 1 and chance.random() < 0.5:
            continue
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        place = chance.choice(("w.data", "w.data", *_PLACES))
        tensor.external_data.add(key="location", value=place)
        for key in ("offset", "length"):
            if chance.random() < 0.5:
                tensor.external_data.add(key=key, value=chance.choice(_OFFSETS))
    return _written(folder, model.SerializeToString())
