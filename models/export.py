"""The same families from transformers with random weights, through torch's own exporters.

`python -m models.export OUTDIR [--small] [--only a,b] [--exporter dynamo,ts]` writes
OUTDIR/NAME.EXPORTER.onnx and OUTDIR/NAME.EXPORTER.npz, which holds one set of inputs (x0, x1)
and torch's output (y). Needs torch and transformers: the extra "export".
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from ortkit.errors import CheckError, MissingDependencyError, OrtkitError, UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

VOCABULARY = 1000
OPSETS = {"dynamo": 20, "ts": 17}
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
    """Axes of every input that are not fixed, besides TorchScript's batch."""


def main(arguments: list[str] | None = None) -> int:
    """Export what was asked for; return the exit code: 1 if an export failed."""
    options = _parser().parse_args(arguments)
    try:
        _require("torch", "transformers", "onnxscript")
        return _export_all(options)
    except OrtkitError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m models.export", description=__doc__)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow layers, small images")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--exporter", default="dynamo,ts", help="default: dynamo,ts")
    parser.add_argument("--static", action="store_true", help="fix all sizes")
    parser.add_argument("--seed", type=int, default=0, help="of weights and inputs, default 0")
    return parser


def _require(*packages: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise MissingDependencyError(
            f"{' and '.join(missing)} not installed",
            where="models.export",
            fix="install the extra: pip install 'ortkit[export]'",
        )


def _choose(text: str, known: list[str], option: str) -> list[str]:
    chosen = [name for name in text.split(",") if name] or known
    for name in chosen:
        if name not in known:
            fix = f"choose from {', '.join(known)}"
            raise UserError(f"no such name as {name!r}", where=option, fix=fix)
    return chosen


def _export_all(options: argparse.Namespace) -> int:
    every = families()
    names = _choose(options.only, list(every), "--only")
    exporters = _choose(options.exporter, list(OPSETS), "--exporter")
    options.outdir.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in names:
        case = _prepare(every[name], SMALL if options.small else FULL, options.seed)
        dynamic = {} if options.static else every[name].dynamic
        for exporter in exporters:
            path = options.outdir / f"{name}.{exporter}.onnx"
            try:
                print(_export(case, exporter, dynamic, path), flush=True)
            except CheckError as error:
                failed += 1
                print(f"{name}.{exporter}: {error}", flush=True)
    return 1 if failed else 0


# ---- the families ----


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


# ---- one export ----


@dataclass(frozen=True)
class Case:
    """A module with one set of inputs and what it gives for them."""

    module: Module
    inputs: tuple[Tensor, ...]
    output: Tensor


def _prepare(family: Family, sizes: Sizes, seed: int) -> Case:
    """Make the module, move what is trivial in it, and run it once."""
    import torch

    torch.manual_seed(seed)
    inputs = family.inputs(sizes)
    module = _first_output(family.module(sizes)).eval()
    with torch.no_grad():
        # Fresh biases and norms are all 0 or all 1: exporters merge equal ones.
        for parameter in module.parameters():
            if parameter.dim() == 1 and parameter.numel() > 1:
                parameter.add_(0.02 * torch.randn_like(parameter))
        for name, buffer in module.named_buffers():
            if "running_mean" in name:
                buffer.add_(0.1 * torch.randn_like(buffer))
            if "running_var" in name:
                buffer.mul_(1 + 0.2 * torch.rand_like(buffer))
        return Case(module, inputs, module(*inputs))


def _first_output(module: Module) -> Module:
    """Wrap a transformers model so that it returns its last hidden state alone.

    Its second positional argument, if the inputs have one, is the attention mask.
    """
    import torch

    class LastHiddenState(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, m: Module) -> None:
            super().__init__()
            self.m = m

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            keywords = {} if mask is None else {"attention_mask": mask}
            return self.m(x, **keywords).last_hidden_state

    return LastHiddenState(module)


def _export(case: Case, exporter: str, dynamic: Mapping[int, str], path: Path) -> str:
    """Write the model and its values; return a line that says how it went.

    Raises:
        CheckError: The exporter refused.
    """
    names = [f"x{i}" for i in range(len(case.inputs))]
    started = time.perf_counter()
    try:
        with _quiet():
            _EXPORTERS[exporter](case, names, dynamic, path)
    # torch's exporters wrap what goes wrong in subclasses of these four.
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise CheckError(f"export failed: {type(error).__name__}: {reason}") from error
    seconds = time.perf_counter() - started
    values = {name: value.numpy() for name, value in zip(names, case.inputs, strict=True)}
    np.savez(path.with_suffix(".npz"), y=case.output.numpy(), **values)
    nodes = len(onnx.load(path, load_external_data=False).graph.node)
    megabytes = path.stat().st_size / 1e6
    return f"{path.stem}: {seconds:.1f}s {megabytes:.1f}MB nodes={nodes}"


def _dynamo(case: Case, names: list[str], dynamic: Mapping[int, str], path: Path) -> None:
    import torch

    # The wrapper's parameters; torch.export wants one entry for each that is given.
    axes = dict.fromkeys(dynamic, torch.export.Dim.DYNAMIC)
    parameters = ("x", "mask")[: len(names)]
    torch.onnx.export(
        case.module,
        case.inputs,
        path,
        dynamo=True,
        input_names=names,
        output_names=["y"],
        opset_version=OPSETS["dynamo"],
        verbose=False,
        external_data=False,
        dynamic_shapes=dict.fromkeys(parameters, axes) if axes else None,
    )


def _torchscript(case: Case, names: list[str], dynamic: Mapping[int, str], path: Path) -> None:
    import torch

    axes = {name: {0: "batch", **dynamic} for name in names}
    torch.onnx.export(
        case.module,
        case.inputs,
        path,
        dynamo=False,
        input_names=names,
        output_names=["y"],
        opset_version=OPSETS["ts"],
        dynamic_axes=axes if dynamic else None,
    )


_EXPORTERS: dict[str, Callable[[Case, list[str], Mapping[int, str], Path], None]] = {
    "dynamo": _dynamo,
    "ts": _torchscript,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress, warnings and dumped graphs off the screen.

    TorchScript prints the graph from C++ when it fails, so the file descriptors are redirected
    and not only Python's streams.
    """
    saved = [os.dup(number) for number in (1, 2)]
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), Path(os.devnull).open("wb") as nowhere:
            warnings.simplefilter("ignore")
            sys.stdout.flush()
            for number in (1, 2):
                os.dup2(nowhere.fileno(), number)
            yield
    finally:
        sys.stdout.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
