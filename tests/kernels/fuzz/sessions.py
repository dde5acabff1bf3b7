"""Many regions as one model: a session that runs them all, halved where it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from fuzz.values import Region, Value, element, numpy_dtype
from ortkit.kernels.signature import DOMAIN

#: Outputs of a region, or why it did not run.
Outcome = list[np.ndarray] | str
Feeds = Mapping[int, Mapping[str, np.ndarray]]


class Sessions:
    """Regions in as few sessions as ONNX Runtime lets them: one, if it has kernels for all."""

    def __init__(self, regions: Mapping[int, Region], library: Path | None, threads: int) -> None:
        self._regions = dict(regions)
        self._library = library
        self._threads = threads
        self._halves: list[Sessions] = []
        self._session: ort.InferenceSession | None = None
        self._problem = ""
        try:
            self._session = self._load()
        except Exception as error:  # noqa: BLE001  the runtime's errors share no class
            self._problem = _first_line(error)

    def run(self, feeds: Feeds) -> dict[int, Outcome]:
        """Run the regions that there are feeds for."""
        chosen = [number for number in self._regions if number in feeds]
        if not chosen:
            return {}
        if self._session is None:
            return self._by_halves(feeds, self._problem)
        inputs = {}
        for number in chosen:
            for value in self._regions[number].inputs:
                array = feeds[number][value.name]
                is_wide = value.dtype == "bfloat16"
                inputs[_name(number, value)] = array.astype(np.float32) if is_wide else array
        names = [(n, _name(n, value)) for n in chosen for value in self._regions[n].outputs]
        if len(chosen) < len(self._regions):
            return self._by_halves(feeds, "")
        try:
            found = self._session.run([name for _, name in names], inputs)
        except Exception as error:  # noqa: BLE001
            return self._by_halves(feeds, _first_line(error))
        outputs: dict[int, Outcome] = {number: [] for number in chosen}
        for (number, _), array in zip(names, found, strict=True):
            outcome = outputs[number]
            assert isinstance(outcome, list)
            value = self._regions[number].outputs[len(outcome)]
            outcome.append(array.astype(numpy_dtype(value.dtype)))
        return outputs

    def _by_halves(self, feeds: Feeds, problem: str) -> dict[int, Outcome]:
        numbers = list(self._regions)
        if len(numbers) == 1:
            return {numbers[0]: problem}
        if not self._halves:
            middle = len(numbers) // 2
            self._halves = [
                Sessions({n: self._regions[n] for n in part}, self._library, self._threads)
                for part in (numbers[:middle], numbers[middle:])
            ]
        return {n: item for half in self._halves for n, item in half.run(feeds).items()}

    def _load(self) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 4
        if self._library is not None:
            options.register_custom_ops_library(str(self._library))
        model = model_of(self._regions).SerializeToString()
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def model_of(regions: Mapping[int, Region]) -> onnx.ModelProto:
    """Return a model of one fused node for each region, which share nothing.

    Tensors of bfloat16, which numpy has not, come in and go out as float32.
    """
    nodes: list[onnx.NodeProto] = []
    functions: dict[str, onnx.FunctionProto] = {}
    inputs, outputs = [], []
    for number, region in regions.items():
        names = []
        for value in region.inputs:
            name = _name(number, value)
            inputs.append(_info(name, value, number, is_known=True))
            if value.dtype == "bfloat16":
                cast = helper.make_node("Cast", [name], [f"{name}_in"], to=TensorProto.BFLOAT16)
                nodes.append(cast)
                name = f"{name}_in"
            names.append(name)
        signature = region.signature()
        results = [_name(number, v) + "_out" * (v.dtype == "bfloat16") for v in region.outputs]
        nodes.append(helper.make_node(signature.op_type, names, results, domain=DOMAIN))
        for value, name in zip(region.outputs, results, strict=True):
            outputs.append(_info(_name(number, value), value, number, is_known=False))
            if value.dtype == "bfloat16":
                given = outputs[-1].name
                nodes.append(helper.make_node("Cast", [name], [given], to=TensorProto.FLOAT))
        function = signature.function()
        function.domain, function.name = DOMAIN, signature.op_type
        functions[signature.op_type] = function
    opset = next(iter(regions.values())).opset
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "regions", inputs, outputs)
    made = list(functions.values())
    return helper.make_model(graph, opset_imports=opsets, functions=made, ir_version=10)


def _name(number: int, value: Value) -> str:
    return f"r{number}_{value.name}"


def _info(name: str, value: Value, number: int, *, is_known: bool) -> onnx.ValueInfoProto:
    shape: Sequence[int | str | None] = [None] * len(value.shape)
    if is_known:
        # Sizes of different regions are different sizes.
        shape = [
            size.factor if size.is_static else f"r{number}_{size.written()}"
            for size in value.shape
        ]
    of = TensorProto.FLOAT if value.dtype == "bfloat16" else element(value.dtype)
    return helper.make_tensor_value_info(name, of, shape)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
