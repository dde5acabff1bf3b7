"""Tools that fuse into ONNX Runtime's own ops, for node counts beside those that simplify.

`python -m scripts.benches.fusers TOOL SOURCE TARGET` runs one of them; imports nothing of
ortkit, so that it runs in any environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.benches import spelling_worker

#: The kind of model for transformers.optimizer, by what its name begins with.
MODEL_TYPES = {"gpt2": "gpt2", "vit": "vit", "llama": "gpt_neox", "whisper": "bart"}


def _transformers(source: Path, target: Path) -> None:
    from onnxruntime.transformers import optimizer

    kind = next((k for name, k in MODEL_TYPES.items() if source.stem.startswith(name)), "bert")
    # Heads and width of 0: it reads them from the graph.
    model = optimizer.optimize_model(
        str(source), model_type=kind, num_heads=0, hidden_size=0, opt_level=0
    )
    model.save_model_to_file(str(target))


def _onnxscript(source: Path, target: Path) -> None:
    spelling_worker.TOOLS["onnxscript"]()(source, target)


TOOLS = {"onnxscript": _onnxscript, "tf.optimizer": _transformers}


def command(python: Path, name: str, source: Path, target: Path) -> list[str]:
    """Return the command line that runs a tool in the environment of `python`."""
    return [str(python), "-m", __name__, name, str(source), str(target)]


if __name__ == "__main__":
    TOOLS[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
