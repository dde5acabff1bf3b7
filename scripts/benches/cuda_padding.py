"""An encoder with a padding mask: all tokens computed, and only those that the mask keeps."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import ortkit
from scripts.benches import output
from scripts.benches.gpu import take_turns

_LENGTH, _VOCABULARY = 384, 1000
#: Samples, and how much of each is no padding.
_CASES = ((32, 0.25), (32, 0.5), (32, 0.75), (32, 1.0), (8, 0.5))
#: What `ortkit optimize` is given.
_WAYS: Mapping[str, list[str]] = {"padded": [], "packed": ["--skip-padding", "mask"]}
_EACH = 10
#: Of the norm: what both may be off from each other.
_MOST_OFF = 5e-3

Measure = Callable[[Callable[[], object]], dict[str, Any]]


def prepare_padding(folder: Path, arch: str) -> dict[str, Path]:
    """Export bert-base with a mask and optimize it both ways; return the files."""
    path = folder / "bert-base, masked.onnx"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _export(path)
    found = {way: path.with_suffix(f".{way}.onnx") for way in _WAYS}
    for way, options in _WAYS.items():
        if not found[way].exists():
            command = [
                sys.executable,
                "-m",
                "ortkit",
                "optimize",
                str(path),
                "-o",
                str(found[way]),
            ]
            command += ["--target", "cuda", "--arch", arch, "--no-verify", *options]
            subprocess.run(command, check=True, capture_output=True)
    return found


def measure_padding(
    folder: Path, options: argparse.Namespace, kernels_of: Measure
) -> list[dict[str, Any]]:
    """Measure both ways, in CUDA graphs; that of packed runs is one for their number of tokens."""
    import torch

    files = prepare_padding(folder, options.arch)
    rows = []
    for batch, filled in _CASES:
        ids = torch.randint(0, _VOCABULARY, (batch, _LENGTH), device="cuda")
        mask = torch.zeros(batch, _LENGTH, dtype=torch.int64, device="cuda")
        mask[:, : int(filled * _LENGTH)] = 1
        feeds = {"x": ids, "mask": mask}
        calls, found = dict[str, Callable[[], object]](), dict[str, Any]()
        sessions = [
            ortkit.Session(files[way], "cuda", cuda_graph=True, kernels="require") for way in _WAYS
        ]
        for way, session in zip(_WAYS, sessions, strict=True):
            bound = session.bind(feeds)
            for _ in range(3):
                bound.run()
            calls[way] = bound.run
            found[way] = torch.from_dlpack(bound.outputs["y"]).float().clone()
        kept = mask.bool()
        off = (found["packed"][kept] - found["padded"][kept]).norm() / found["padded"][kept].norm()
        if not off <= _MOST_OFF:
            raise ValueError(f"packed rows are off by {off:.1e} of the norm")
        elapsed = take_turns(calls, options.rounds, each=_EACH)
        rows.append(
            {
                "batch": batch, "filled": filled, "milliseconds": elapsed, "off": float(off),
                "device": {way: kernels_of(call)["microseconds"] for way, call in calls.items()},
            }
        )  # fmt: skip
        for session in sessions:
            session.close()
    return rows


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[output.Cell]]]:
    """Return the table of `measure_padding`: a header and rows, in ms."""
    header = ["batch", "filled", "padded, device", "packed, device", "gain", "padded, host",
              "packed, host", "gain"]  # fmt: skip
    found: list[list[output.Cell]] = []
    for row in rows:
        device = [row["device"][way] / 1e3 for way in _WAYS]
        host = [median(row["milliseconds"][way]) for way in _WAYS]
        found.append(
            [row["batch"], f"{100 * row['filled']:.0f} %", *device, device[0] / device[1],
             *host, host[0] / host[1]]
        )  # fmt: skip
    return header, found


def _export(path: Path) -> None:
    import torch
    from transformers import BertConfig, BertModel

    class Masked(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = BertModel(BertConfig())

        def forward(self, x: Any, mask: Any) -> Any:
            return self.model(x, attention_mask=mask).last_hidden_state

    torch.manual_seed(0)
    module = Masked().eval().half().cuda()
    ids = torch.randint(0, _VOCABULARY, (2, _LENGTH), device="cuda")
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with torch.no_grad():
        torch.onnx.export(
            module, (ids, torch.ones_like(ids)), path, dynamo=True, input_names=["x", "mask"],
            output_names=["y"], opset_version=20, verbose=False, external_data=True,
            dynamic_shapes=(sizes, sizes),
        )  # fmt: skip
