"""Models compiled ahead of time: kernels in EPContext nodes, for machines without ortkit's Python.

What such a model needs to run is ONNX Runtime and `libortkit_provider.so`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ortkit.errors import RunError, UserError
from ortkit.graph.io.atomic import FileSet, check_target
from ortkit.graph.io.data_names import name_data, remove_unused_data, rename_data
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import refuse_own_data
from ortkit.provider.own.options import NAME, OwnOptions
from ortkit.provider.own.provider import OrtkitExecutionProvider
from ortkit.provider.registration import (
    register_provider,
    registered_providers,
    unregister_provider,
)
from ortkit.runtime.ort import import_onnxruntime
from ortkit.temporary import TemporaryFolder
from ortkit.verify.compare import OutputComparison, compare_outputs, worse
from ortkit.verify.inputs.feeds import FeedMaker, Feeds
from ortkit.verify.inputs.given import load_feeds

#: Larger weights are written beside the model: one protobuf file holds 2 GiB.
_MOST_INSIDE = 1 << 30
_SAMPLES = 2


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class Compiled:
    """What became of a model.

    Args:
        output: Where it was written.
        weights: The file of its weights beside it, None if they are inside.
        groups: How many EPContext nodes it has.
        nodes: How many nodes it has in all.
        size_bytes: Of the file.
        library_bytes: Of the kernel library inside.
        compatibility: What a provider gets before it runs the model.
        outputs: How each output compares with plain ONNX Runtime's; empty if it was not asked.
    """

    output: Path
    weights: Path | None
    groups: int
    nodes: int
    size_bytes: int
    library_bytes: int
    compatibility: str
    outputs: tuple[OutputComparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all outputs agree, as far as that was asked."""
        return all(output.equal for output in self.outputs)

    def to_json(self) -> dict[str, object]:
        """Return the fields."""
        return {
            "output": str(self.output),
            "weights": None if self.weights is None else str(self.weights),
            "groups": self.groups,
            "nodes": self.nodes,
            "size_bytes": self.size_bytes,
            "library_bytes": self.library_bytes,
            "compatibility": self.compatibility,
            "equal": self.is_equal if self.outputs else None,
            "outputs": [output.to_json() for output in self.outputs],
        }


def compile_model(
    model: Path,
    output: Path,
    options: Mapping[str, str],
    *,
    verify: bool = True,
    inputs: Path | None = None,
    shapes: Mapping[str, int] | None = None,
    progress: Callable[[str], None] = _silent,
) -> Compiled:
    """Compile a model for the OrtkitExecutionProvider and write it; whole or not at all.

    Args:
        model: An ONNX file.
        output: Where the result goes. Replaced if it exists.
        options: Of the provider; see `OwnOptions`.
        verify: Whether to run the result beside the model, on made-up inputs.
        inputs: An npz file to run on instead.
        shapes: Numbers for named sizes of made-up inputs.
        progress: Called with what is being done.

    Raises:
        ModelError: The model is not valid.
        UserError: An option is wrong, nothing pays, or `output` cannot be written.
        RunError: ONNX Runtime does not compile or run it.
        KernelError: A toolchain failed.
    """
    OwnOptions.of(options)
    opened = open_model(model)
    weights = sum(one.nbytes for v in opened.graph.initializers.values() if (one := v.const_value))
    if not output.parent.is_dir():
        raise UserError("there is no such folder", where=str(output.parent), fix="make it first")
    if output.resolve() == model.resolve():
        raise UserError("would be written over", where=str(model), fix="name another --output")
    refuse_own_data(opened, (output,))
    check_target(output)
    with (
        _registered(),
        TemporaryFolder("compile", inside=output.parent) as folder,
        FileSet() as files,
    ):
        draft = folder / output.name
        made = folder / f"{output.name}.data" if weights > _MOST_INSIDE else None
        progress("compile")
        _compile(model, draft, made, options)
        beside = None if made is None else _name_weights(files, made, draft, output)
        found = _read(draft, output, beside)
        if not found.groups:
            raise UserError(
                "no group of nodes pays with kernels, so there is nothing to compile",
                where=str(model),
                fix="run the model as it is, or see why with --option verbosity=2",
            )
        comparisons: tuple[OutputComparison, ...] = ()
        if verify:
            progress("verify")
            feeds = (
                FeedMaker.of(opened, dict(shapes or {})).first(_SAMPLES, 0)
                if inputs is None
                else (load_feeds(inputs, opened),)
            )
            comparisons = _compared(model, draft, feeds)
        result = Compiled(**{**found.__dict__, "outputs": comparisons})
        if result.is_equal:
            written = files.take(draft, output)
            files.put_in_place()
            remove_unused_data(written, beside)
    return result


@contextmanager
def _registered() -> Iterator[None]:
    """Register the provider for as long as the block runs, if it is not registered."""
    if NAME in registered_providers():
        yield
        return
    register_provider(OrtkitExecutionProvider())
    try:
        yield
    finally:
        unregister_provider(NAME)


def _settings(options: Mapping[str, str] | None) -> Any:
    ort: Any = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    if options is not None:
        if options.get("verbosity", "0") != "0":
            settings.log_severity_level = 2
        devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
        settings.add_provider_for_devices(devices[:1], dict(options))
    return settings


def _compile(model: Path, draft: Path, beside: Path | None, options: Mapping[str, str]) -> None:
    ort: Any = import_onnxruntime()
    try:
        compiler = ort.ModelCompiler(
            _settings({**options, "strict": "1"}),
            str(model),
            embed_compiled_data_into_model=True,
            external_initializers_file_path=None if beside is None else beside.name,
            graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        )
        compiler.compile_to_file(str(draft))
    except Exception as error:  # onnxruntime's own classes, which share no base
        text = " ".join(str(error).split())
        raise RunError(f"ONNX Runtime does not compile it: {text}", where=str(model)) from error


def _name_weights(files: FileSet, made: Path, draft: Path, output: Path) -> Path:
    """Let a compiled model call its weights as `output` will; return their file there."""
    written = files.take(made, output)
    beside = name_data(files, written, output)
    compiled = onnx.load(draft, load_external_data=False)
    rename_data(compiled, made.name, beside.name)
    draft.write_bytes(compiled.SerializeToString())
    written.path = made.rename(made.with_name(beside.name))  # the draft runs where it lies
    return beside


def _read(draft: Path, output: Path, beside: Path | None) -> Compiled:
    made = onnx.load(draft, load_external_data=False)
    groups = [node for node in made.graph.node if node.op_type == "EPContext"]
    library = sum(
        len(attribute.s)
        for node in groups
        for attribute in node.attribute
        if attribute.name == "ep_cache_context"
    )
    properties = {entry.key: entry.value for entry in made.metadata_props}
    return Compiled(
        output=output,
        weights=beside,
        groups=len(groups),
        nodes=len(made.graph.node),
        size_bytes=draft.stat().st_size,
        library_bytes=library,
        compatibility=properties.get(f"ep_compatibility_info.{NAME}", ""),
        outputs=(),
    )


def _compared(model: Path, draft: Path, feeds: tuple[Feeds, ...]) -> tuple[OutputComparison, ...]:
    """Run both on all inputs; the worst comparison of each output."""
    plain, ours = _results(model, None, feeds), _results(draft, {"trust": "1"}, feeds)
    found: dict[str, OutputComparison] = {}
    for expected, actual in zip(plain, ours, strict=True):
        for name, value in expected.items():
            output_comparison = compare_outputs(name, value, actual[name])
            found[name] = (
                worse(found[name], output_comparison) if name in found else output_comparison
            )
    return tuple(found.values())


def _results(
    path: Path, options: Mapping[str, str] | None, feeds: tuple[Feeds, ...]
) -> list[dict[str, Any]]:
    ort: Any = import_onnxruntime()
    providers = ["CPUExecutionProvider"] if options is None else None
    try:
        session = ort.InferenceSession(str(path), _settings(options), providers=providers)
        names = [value.name for value in session.get_outputs()]
        known = {value.name for value in session.get_inputs()}
        return [
            dict(zip(names, session.run(names, {k: v for k, v in each.items() if k in known}),
                     strict=True))
            for each in feeds
        ]  # fmt: skip
    except Exception as error:  # onnxruntime's own classes, which share no base
        text = " ".join(str(error).split())
        raise RunError(f"ONNX Runtime does not run it: {text}", where=str(path)) from error
