"""Runs one tool on a folder of models: `spelling_worker.py TOOL SOURCE TARGET`.

Writes TARGET/NAME.onnx, or TARGET/NAME.txt with what went wrong. Imports nothing but the tool, so
that it runs in any environment; each model is done in a process of its own, since tools crash.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

SECONDS = 60
Run = Callable[[Path, Path], None]


def _ortkit() -> Run:
    from ortkit import OptimizeOptions, optimize
    from ortkit.passes.select import select_passes

    # Imported once, not in each child.
    select_passes("", 3)
    options = OptimizeOptions(level=3, kernels="off", verify=False)
    return lambda source, target: [optimize(source, options).save(target)].clear()


def _onnxsim() -> Run:
    import onnx
    import onnxsim  # type: ignore[import-not-found]

    return lambda source, target: onnx.save(onnxsim.simplify(onnx.load(source))[0], target)


def _onnxslim() -> Run:
    import onnx
    import onnxslim  # type: ignore[import-not-found]

    return lambda source, target: onnx.save(onnxslim.slim(onnx.load(source)), target)


def _onnxscript() -> Run:
    import onnx
    import onnx_ir as ir
    from onnxscript import optimizer
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    def run(source: Path, target: Path) -> None:
        model = ir.serde.deserialize_model(onnx.load(source))
        optimizer.optimize(model)
        found = optimize_for_ort(model)
        ir.save(found[0] if isinstance(found, tuple) else found, target)

    return run


def _onnxruntime() -> Run:
    import onnxruntime as ort

    def run(source: Path, target: Path) -> None:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 4
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])

    return run


def _transformers() -> Run:
    from onnxruntime.transformers import optimizer

    # Without these numbers it looks for no attention; all blocks of the suite have them.
    heads, hidden = 4, 32

    def run(source: Path, target: Path) -> None:
        model = optimizer.optimize_model(
            str(source), model_type="bert", num_heads=heads, hidden_size=hidden, opt_level=0
        )
        model.save_model_to_file(str(target))

    return run


TOOLS: dict[str, Callable[[], Run]] = {
    "ortkit": _ortkit,
    "onnxsim": _onnxsim,
    "onnxslim": _onnxslim,
    "onnxscript": _onnxscript,
    "onnxruntime": _onnxruntime,
    "transformers": _transformers,
}


def main(tool: str, source: Path, target: Path) -> int:
    """Run the tool on each model; 3 if it is not installed."""
    logging.disable(logging.ERROR)
    try:
        run = TOOLS[tool]()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 3
    for path in sorted(source.glob("*.onnx")):
        child = os.fork()
        if child == 0:
            os._exit(_one(run, path, target / path.name))
        _, status = os.waitpid(child, 0)
        if (
            not (target / path.name).exists()
            and not (target / path.stem).with_suffix(".txt").exists()
        ):
            reason = f"ended with {os.waitstatus_to_exitcode(status)}"
            (target / path.name).with_suffix(".txt").write_text(reason, encoding="utf-8")
    return 0


def _one(run: Run, source: Path, target: Path) -> int:
    signal.alarm(SECONDS)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        run(source, target)
    except BaseException as error:  # noqa: BLE001  any end of a tool is a result
        text = f"{type(error).__name__}: {error}"
        target.with_suffix(".txt").write_text(text[:500], encoding="utf-8")
        target.unlink(missing_ok=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
