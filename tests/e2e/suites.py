"""The test cases of the onnx wheel, as models with inputs, and ONNX Runtime to run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.provider.conformance.cases import (
    NEWEST_IR_VERSION,
    Value,
    node_tests,
    run_session,
    value_of,
)

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@dataclass(frozen=True)
class Case:
    """One model with the inputs it is run on."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[Value, ...]
    """In the order of those of the graph's inputs that are no initializers."""

    def feeds(self) -> dict[str, Value]:
        """Return the inputs by name."""
        held = {tensor.name for tensor in self.model.graph.initializer}
        names = [value.name for value in self.model.graph.input if value.name not in held]
        if len(names) < len(self.inputs):  # the case feeds initializers too
            names = [value.name for value in self.model.graph.input]
        return dict(zip(names, self.inputs, strict=False))


def node_cases() -> list[Case]:
    """Return the cases that onnx makes in memory, most of them of one node."""
    return [
        Case(case.name, case.model, tuple(value_of(value) for value in case.data_sets[0][0]))
        for case in node_tests()
    ]


def stored_cases(kind: str) -> list[Case]:
    """Return the cases that lie in a folder of the wheel."""
    from onnx.backend.test.loader import load_model_tests

    return sorted(
        (_stored(Path(case.model_dir), case.name) for case in load_model_tests(kind=kind)),
        key=lambda case: case.name,
    )


def light_cases() -> list[Case]:
    """Return the image networks whose weights are made by ConstantOfShape, on one image each."""
    return [_light(path) for path in sorted(LIGHT.glob("*.onnx"))]


def with_constants(case: Case, count: int) -> Case | None:
    """Return the case with its last `count` tensor inputs as initializers, None if it has none.

    Results go through an If whose branches only return them, so that they may be folded.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    feeds = case.feeds()
    tensors = [name for name, value in feeds.items() if isinstance(value, np.ndarray)]
    chosen = tensors[len(tensors) - count :]
    if not 0 < count <= len(tensors) or model.ir_version < 4:
        return None
    for name in chosen:
        model.graph.initializer.append(_tensor(name, feeds.pop(name)))
    kept = [value for value in model.graph.input if value.name not in chosen]
    model.graph.ClearField("input")
    model.graph.input.extend(kept)
    if not any(entry.domain in ("", "ai.onnx") for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 17))
    _return_through_if(model.graph)
    inputs = (*feeds.values(), np.array(True))
    return Case(f"{case.name}/{count}", model, inputs)


def with_symbols(case: Case) -> Case | None:
    """Return the case with a name for every size: equal sizes share one. None if it has none."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.ClearField("value_info")
    count = 0
    for value in model.graph.input:
        for size in value.type.tensor_type.shape.dim:
            count += size.HasField("dim_value")
            size.dim_param = f"s{size.dim_value}"
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    held = {tensor.name for tensor in model.graph.initializer}
    is_free = not held & {value.name for value in model.graph.input}
    return Case(f"{case.name}/symbolic", model, case.inputs) if count and is_free else None


def _return_through_if(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("ortkit_flag", onnx.TensorProto.BOOL, []))
    for output in graph.output:
        inner, name = f"{output.name}_computed", output.name
        for node in graph.node:
            for names in (node.input, node.output):
                for i, used in enumerate(names):
                    if used == name:
                        names[i] = inner
        branches = {}
        for branch in ("then", "else"):
            returned = f"{name}_{branch}"
            info = onnx.ValueInfoProto(name=returned, type=output.type)
            body = [helper.make_node("Identity", [inner], [returned])]
            branches[f"{branch}_branch"] = helper.make_graph(body, branch, [], [info])
        graph.node.append(helper.make_node("If", ["ortkit_flag"], [name], **branches))


def run(
    model: onnx.ModelProto, feeds: Mapping[str, Value], libraries: Sequence[Path] = ()
) -> list[Value]:
    """Run a model in ONNX Runtime with its optimizations off.

    Raises:
        Exception: ONNX Runtime cannot load or run it; its own exceptions have no other base.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for library in libraries:
        options.register_custom_ops_library(str(library))
    session = ort.InferenceSession(
        readable(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return run_session(session, dict(feeds))


def readable(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with an IR version that ONNX Runtime reads."""
    if model.ir_version <= NEWEST_IR_VERSION:
        return model
    older = onnx.ModelProto()
    older.CopyFrom(model)
    older.ir_version = NEWEST_IR_VERSION
    return older


def same(left: Value, right: Value) -> bool:
    """Say whether two values agree bit for bit, NaN being equal to NaN."""
    if isinstance(left, list | dict) or isinstance(right, list | dict):
        return type(left) is type(right) and _same_parts(left, right)
    if left is None or right is None:
        return left is right
    left, right = np.asarray(left), np.asarray(right)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    if left.dtype.kind in "OUS":
        return bool((left == right).all())
    return left.tobytes() == right.tobytes() or bool(
        ((left == right) | ((left != left) & (right != right))).all()
    )


def _same_parts(left: object, right: object) -> bool:
    if isinstance(left, dict):
        return left == right
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(same(a, b) for a, b in pairs)


def _tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    if array.dtype.kind in "OUS":
        texts = [str(text).encode() for text in array.reshape(-1)]
        return helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, texts)
    tensor = ir.to_proto(ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name))
    assert isinstance(tensor, onnx.TensorProto)
    return tensor


def _stored(folder: Path, name: str) -> Case:
    model = onnx.load(folder / "model.onnx")
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=_number)
    values = (
        _read(file, value.type) for file, value in zip(files, model.graph.input, strict=False)
    )
    return Case(name, model, tuple(values))


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("input_"))


def _read(path: Path, kind: onnx.TypeProto) -> Value:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return list(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if kind.HasField("optional_type"):
        return value_of(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
    return value_of(onnx.TensorProto.FromString(data))


def _light(path: Path) -> Case:
    model = onnx.load(path)
    held = {tensor.name for tensor in model.graph.initializer}
    random = np.random.default_rng(0)
    images = [
        random.random([size.dim_value for size in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
        if value.name not in held
    ]
    return Case(path.stem, model, tuple(images))


def with_subgraphs(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and those of the graphs that their attributes hold."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from with_subgraphs(graph.node)
