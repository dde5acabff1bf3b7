"""Cases as one model with a node for every variant of every kernel, and its library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import helper

from ortkit.errors import InternalError, KernelError
from ortkit.kernels.build.compiler import Job, compile_all
from ortkit.kernels.cuda import CudaKernel, Variant, rename_extent
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.targets.target import Target
from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.cached_rows import cached_rows
from ortkit.verify.kernels.packed_rows import packed_rows
from scripts.sanitizer.cases import EIGHT, Case

Array = np.ndarray[Any, np.dtype[Any]]
_FP8, _HALF = int(onnx.TensorProto.FLOAT8E4M3FN), int(onnx.TensorProto.FLOAT16)


@dataclass(frozen=True)
class Rounded:
    """How far results in float8e4m3fn may be off.

    Args:
        part: Of them that may be a step off, as they lie halfway between two numbers.
        before: Error before they are rounded, in parts of the largest one. Sums near zero, whose
            steps are small, may be several steps off by it.
    """

    part: float
    before: float = 0.0


#: Quotients of numbers of 11 bits.
_QUOTIENTS = Rounded(1 / 256)
#: Sums by the weights of a softmax, which are in half precision.
_ATTENTION = Rounded(1 / 32, 2.0**-10)


@dataclass(frozen=True)
class Node:
    """One variant of a case's kernel, on sizes that it takes."""

    case: Case
    signature: RegionSignature
    """Under a name of its own."""
    kernel: CudaKernel
    """With this variant only."""
    sizes: dict[str, int]

    @property
    def offset(self) -> int:
        """By how many bytes its tensors miss multiples of 16."""
        return 0 if self.kernel.variants[0].aligned else 8

    def tensor(self, name: str) -> str:
        """Return a tensor's name in the model."""
        return f"{self.signature.name}.{name}"

    def shape(self, dims: Sequence[int | str]) -> tuple[int, ...]:
        """Return a shape in numbers."""
        return tuple(_size(extent_of(dim), self.sizes) for dim in dims)


@dataclass(frozen=True)
class Suite:
    """The files of a job for the child, and what they hold."""

    nodes: tuple[Node, ...]
    job: Path
    model: Path
    feeds: dict[str, Array]


def compiled(cases: Sequence[Case], architecture: int, folder: Path) -> list[CudaKernel]:
    """Compile the cases' kernels for one architecture.

    Raises:
        KernelError: One does not compile.
    """
    jobs = []
    for case in cases:
        run_folder = folder / case.name
        run_folder.mkdir(parents=True)
        target = Target("cuda", f"sm_{architecture}")
        jobs.append(Job("triton", case.signature(), target, run_folder))
    kernels = []
    for case, made in zip(cases, compile_all(jobs, _uncounted), strict=True):
        if not isinstance(made, CudaKernel):
            raise KernelError(f"the case {case.name} does not compile: {made}")
        kernels.append(made)
    return kernels


def nodes_of(case: Case, kernel: CudaKernel) -> list[Node]:
    """Return a node for each variant.

    Raises:
        InternalError: No sizes of the case are taken by some variant.
    """
    signature = case.signature()
    nodes = []
    for number, variant in enumerate(kernel.variants):
        sizes = sizes_for(case, kernel.variants, number)
        if sizes is None:
            raise InternalError(f"variant {number} of {case.name} takes none of the case's sizes")
        own = tuple(
            replace(image, variant=0) for image in kernel.images if image.variant == number
        )
        alone = replace(kernel, variants=(variant,), images=own)
        named = replace(signature, name=f"{case.name}_{number}")
        nodes.append(Node(case, named, alone, sizes))
    return nodes


def sizes_for(case: Case, variants: Sequence[Variant], number: int) -> dict[str, int] | None:
    """Return the first sizes of the case that a variant takes, at best before any other."""
    signature, variant = case.signature(), variants[number]
    rivals = [item for item in variants[:number] if item.aligned <= variant.aligned]
    fitting = [sizes for sizes in case.sizes if _holds(variant, signature, sizes)]
    for sizes in fitting:
        if not any(_holds(rival, signature, sizes) for rival in rivals):
            return sizes
    return fitting[0] if fitting else None


def build(nodes: Sequence[Node], folder: Path) -> Suite:
    """Write the model, the library, inputs and the job."""
    folder.mkdir(parents=True, exist_ok=True)
    model, library = folder / "model.onnx", folder / "kernels.so"
    onnx.save(model_of(nodes), model)
    target = nodes[0].kernel.target
    link_library(
        [node.kernel for node in nodes], [node.signature for node in nodes], library, target
    )
    feeds = {name: array for node in nodes for name, array in feeds_of(node).items()}
    np.savez(folder / "feeds.npz", **feeds)
    outputs = {
        node.tensor(spec.name): [_at_edge(spec.dtype), list(node.shape(spec.shape)), node.offset]
        for node in nodes
        for spec in node.signature.outputs
    }
    offsets = {
        node.tensor(spec.name): node.offset for node in nodes for spec in node.signature.inputs
    }
    job = folder / "job.json"
    content = {
        "model": str(model),
        "library": str(library),
        "feeds": str(folder / "feeds.npz"),
        "offsets": offsets,
        "outputs": outputs,
        "ops": [node.signature.op_type for node in nodes],
        "results": str(folder / "results.npz"),
    }
    job.write_text(json.dumps(content), "utf-8")
    return Suite(tuple(nodes), job, model, feeds)


def body_outputs(model: str | bytes, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return what the functions' bodies give on the CPU.

    Args:
        model: A file, or its bytes.
        feeds: All inputs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def wrong_outputs(suite: Suite, found: dict[str, Array]) -> list[str]:
    """Return the outputs that are not what the functions' bodies give on the CPU."""
    eights = {
        node.tensor(spec.name): _ATTENTION if "Softmax" in node.signature.body else _QUOTIENTS
        for node in suite.nodes
        for spec in node.signature.outputs
        if spec.dtype == EIGHT
    }
    wrong = []
    for name, expected in body_outputs(str(suite.model), suite.feeds).items():
        if not np.isfinite(expected.astype(np.float64)).all():
            wrong.append(f"{name}: the case gives numbers that are not finite")
            continue
        error = np.abs(found[name].astype(np.float64) - expected.astype(np.float64))
        limits = eights.get(name)
        is_right = (
            _is_right(error, expected)
            if limits is None
            else is_rounded_alike(error, expected, limits)
        )
        if not is_right:
            wrong.append(f"{name}: off by {error.max():.3g}")
    return wrong


def _is_right(error: Array, expected: Array) -> bool:
    if expected.dtype.kind in "iub":
        return not error.any()
    # Sums of 100,000 float32 in another order; float16 rounded at other places.
    bound = 2.0**-8 if expected.dtype == np.float16 else 2.0**-14
    return bool((error <= bound * max(1.0, float(np.abs(expected).max()))).all())


def is_rounded_alike(error: Array, expected: Array, limits: Rounded = _QUOTIENTS) -> bool:
    """Return whether numbers in float8e4m3fn are one step off at most, and few of them are.

    Args:
        error: Of each number.
        expected: What they should be.
        limits: What they may be off.
    """
    sizes = np.abs(expected.astype(np.float64))
    step = np.maximum(sizes / 8, 2.0**-9) + limits.before * sizes.max(initial=0.0)
    return bool((error <= step).all() and np.mean(error > 0) <= limits.part)


def _uncounted(done: int, total: int) -> None:
    """Ignore progress."""


def _size(extent: Extent, sizes: dict[str, int]) -> int:
    result = extent.factor
    for symbol in extent.symbols:
        result *= sizes[symbol]
    return result


def _holds(variant: Variant, signature: RegionSignature, sizes: dict[str, int]) -> bool:
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    known = {
        str(rename_extent(Extent(1, (symbol,)), symbols)): sizes[symbol] for symbol in symbols
    }
    return all(
        (size := _size(condition.extent, known)) % condition.divisible_by == 0
        and (condition.at_most is None or size <= condition.at_most)
        for condition in variant.conditions
    )


def model_of(nodes: Sequence[Node]) -> onnx.ModelProto:
    """Return a model with a call of each node's function."""
    made, inputs, outputs, functions = [], [], [], []
    for node in nodes:
        signature = node.signature
        names = [_inside(node, spec) for spec in signature.inputs]
        results = [_inside(node, spec) for spec in signature.outputs]
        made += [
            helper.make_node("Cast", [node.tensor(spec.name)], [_inside(node, spec)], to=_FP8)
            for spec in signature.inputs
            if spec.dtype == EIGHT
        ]
        made.append(helper.make_node(signature.op_type, names, results, domain=DOMAIN))
        made += [
            helper.make_node("Cast", [_inside(node, spec)], [node.tensor(spec.name)], to=_HALF)
            for spec in signature.outputs
            if spec.dtype == EIGHT
        ]
        for specs, values in ((signature.inputs, inputs), (signature.outputs, outputs)):
            for spec in specs:
                kind = helper.np_dtype_to_tensor_dtype(np.dtype(_at_edge(spec.dtype)))
                shape = node.shape(spec.shape)
                values.append(helper.make_tensor_value_info(node.tensor(spec.name), kind, shape))
        function = signature.function()
        function.domain, function.name = DOMAIN, signature.op_type
        functions.append(function)
    domains = {"": 23, DOMAIN: 1, "com.microsoft": 1}
    opsets = [helper.make_opsetid(name, version) for name, version in domains.items()]
    graph = helper.make_graph(made, "sanitized", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    onnx.checker.check_model(model)
    return model


def _inside(node: Node, spec: TensorSpec) -> str:
    """Return what a tensor is called at its node: eight bits are cast from and to float16."""
    return node.tensor(spec.name) + ("/eights" if spec.dtype == EIGHT else "")


def _at_edge(dtype: str) -> str:
    """Return the type of a tensor that is bound: numpy has no fp8 type."""
    return "float16" if dtype == EIGHT else dtype


def feeds_of(node: Node) -> dict[str, Array]:
    """Return the inputs of a node by the names of its tensors."""
    specs = node.signature.inputs
    arrays = [
        _random(_at_edge(spec.dtype), node.shape(spec.shape), index)
        for index, spec in enumerate(specs)
    ]
    factors = [node.case.factors.get(spec.name) for spec in specs]
    arrays = [
        array if factor is None else array * array.dtype.type(factor)
        for array, factor in zip(arrays, factors, strict=True)
    ]
    function = onnx.parser.parse_function(node.signature.body)
    agreeing = packed_rows(function) or cached_rows(function)
    if agreeing is not None:
        arrays = [each.array for each in agreeing.agree(list(map(Operand, arrays)), 0)]
    return {node.tensor(spec.name): array for spec, array in zip(specs, arrays, strict=True)}


def _random(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    if dtype == "uint8":  # numbers of four bits, two of them in each
        return random.integers(0, 256, shape, np.uint8)
    if dtype.startswith("int"):
        return random.integers(1, 100, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
