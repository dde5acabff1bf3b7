"""The models to measure on: a folder of exports, or what models/ builds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

import models
from models.catalog import BUILDERS, spellings
from scripts.benches.output import say


@dataclass(frozen=True)
class Entry:
    """One model of the corpus."""

    name: str
    """`bert.ts`, or with a size: `bert.ts.tiny`."""
    path: Path

    def feeds(self) -> Mapping[str, np.ndarray]:
        """Return one set of inputs: those stored beside the model, or made from its inputs."""
        model = onnx.load(self.path, load_external_data=False)
        stored = self.path.with_suffix(".npz")
        if not stored.exists():
            return models.feeds(model)
        own = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in own]
        with np.load(stored) as arrays:
            # Exports store x0, x1, ... in the order of the inputs.
            keys = [f"x{i}" if "x0" in arrays else name for i, name in enumerate(names)]
            return {name: arrays[key] for name, key in zip(names, keys, strict=True)}


def given(folder: Path) -> list[Entry]:
    """Return the models of a folder, by name."""
    return [Entry(path.stem, path) for path in sorted(folder.glob("*.onnx"))]


def made(folder: Path, sizes: tuple[str, ...]) -> list[Entry]:
    """Build what is missing in `folder`: by torch's exporters if they are here, and by models/."""
    if find_spec("torch") and find_spec("transformers"):
        return _exported(folder, sizes) + _built(folder, sizes) + _quantized(folder, sizes)
    return _built(folder, sizes) + _quantized(folder, sizes)


def _built(folder: Path, sizes: tuple[str, ...]) -> list[Entry]:
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for name in BUILDERS:
        for spelling in spellings(name):
            for size in sizes:
                path = folder / f"{name}.{spelling}.{size}.onnx"
                if not path.exists():
                    say(f"building {path.stem}")
                    flags = ["--size", size, "--spelling", spelling, "-o", str(path)]
                    _python("models", name, *flags)
                entries.append(Entry(path.stem, path))
    return entries


def _quantized(folder: Path, sizes: tuple[str, ...]) -> list[Entry]:
    """Quantize two of the built models, as ONNX Runtime's quantizer does."""
    entries = []
    for name in ("bert", "resnet50"):
        for size in sizes:
            path = folder / f"{name}.qdq.{size}.onnx"
            if not path.exists():
                say(f"quantizing {path.stem}")
                quantize(folder / f"{name}.dynamo.{size}.onnx", path)
            entries.append(Entry(path.stem, path))
    return entries


def quantize(source: Path, target: Path) -> None:
    """Write `source` with QuantizeLinear and DequantizeLinear around its heavy ops."""
    from onnxruntime import quantization

    feeds = iter([models.feeds(onnx.load(source), seed=seed) for seed in (0, 1)])

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> Mapping[str, np.ndarray] | None:
            return next(feeds, None)

    # Of signed activations ONNX Runtime has few integer kernels on x86.
    quantization.quantize_static(
        source,
        target,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
    )


def _exported(folder: Path, sizes: tuple[str, ...]) -> list[Entry]:
    entries = []
    for size in sizes:
        into = folder / f"exported-{size}"
        if not any(into.glob("*.onnx")):
            say(f"exporting with torch, {size} (minutes)")
            flags = ["--small"] if size == "tiny" else []
            _python("models.export", str(into), *flags)
        entries += [Entry(f"{e.name}.exported.{size}", e.path) for e in given(into)]
    return entries


def _python(module: str, *arguments: str) -> None:
    """Run a module in a process of its own, so that this one stays small."""
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
