"""Graphs of models without padding: one for each number of tokens, rounded up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.kernels.metadata import TOKENS_KEY
from ortkit.runtime.binding import Binding, bind
from ortkit.runtime.feeds import FeedReader
from ortkit.runtime.graph_sizes import graph_size
from ortkit.runtime.loading import Loaded
from ortkit.runtime.memory_devices import SessionDevices
from ortkit.runtime.packed_graphs import _MOST_BOUND, PackedRuns, graphs_of, indices_of
from ortkit.runtime.packed_model import PackedModel, packed_model
from ortkit.runtime.source import loadable
from ortkit.runtime.specs import TensorSpec, specs_of
from tests.passes.test_skip_padding import MASKS, encoder, full, one_empty, packed, right
from tests.runtime import graph_runtime

ORT = graph_runtime.runtime()
CUDA = SessionDevices("cuda", "cuda", 0, frozenset())


def without_padding(head: str = "mean", front: str = "x = Gather(table, ids)") -> ir.Model:
    """Return an encoder that computes tokens alone, as `optimize` writes it."""
    model = packed(encoder("chosen", head, front=front)).model
    tokens = [node.outputs[0].name for node in model.graph if node.op_type == "NonZero"]
    assert tokens, "its padding is skipped"
    model.metadata_props[TOKENS_KEY] = json.dumps(tokens)
    return model


class Made:
    """The graphs of a model, on stand-ins for its sessions, beside the model."""

    def __init__(self, model: ir.Model, folder: Path) -> None:
        self.plain = graph_runtime.ModelSession(ir.to_proto(model).SerializeToString()).model
        found = packed_model(loadable(ir.to_proto(model), lambda: folder), lambda: folder)
        assert found is not None
        self.model: PackedModel = found
        self.session = graph_runtime.ModelSession(str(found.path))
        self.chooser = graph_runtime.ModelSession(str(found.chooser))
        inputs, outputs = (specs_of(each) for each in (
            self.session.get_inputs(), self.session.get_outputs(),
        ))  # fmt: skip
        self.specs: tuple[TensorSpec, ...] = inputs
        self.outputs = outputs
        loaded = Loaded(
            self.session, (), (), False, (), inputs, outputs, None, found, self.chooser
        )  # fmt: skip
        runs = graphs_of(ORT, loaded, CUDA)
        assert isinstance(runs, PackedRuns)
        self.runs = runs

    def expected(self, feeds: dict[str, Any]) -> np.ndarray:
        return np.asarray(self.plain.run(["y"], feeds)[0])

    def bound(self, feeds: dict[str, Any]) -> Binding:
        visible = tuple(spec for spec in self.specs if spec.name not in self.model.hidden)
        reader = FeedReader(visible, (), ORT, device="cuda")
        return bind(ORT, self.session, reader, self.outputs, feeds, None, CUDA, self.runs)


def feeds_of(mask: Any, samples: int = 3, length: int = 20, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "ids": random.integers(0, 50, (samples, length)),
        "mask": np.asarray(mask(random, samples, length), np.int64),
    }


def filled(count: int) -> Any:
    """Return a mask with as many tokens, in the first sample first."""
    return lambda _, samples, length: (
        (np.arange(samples * length) < count).reshape(samples, length).astype(np.int64)
    )


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 100, 128, 129, 384, 5000, 6144, 12289])
def test_a_graph_is_at_most_an_eighth_larger(size: int) -> None:
    assert size <= graph_size(size) <= size * 9 / 8
    assert graph_size(graph_size(size)) == graph_size(size)


def test_sizes_of_graphs_are_few() -> None:
    found = {graph_size(size) for size in range(1024, 2049)}
    assert found == {1024, *range(1024 + 128, 2049, 128)}


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
@pytest.mark.parametrize("head", ["mean", "maximum", "first"])
def test_replays_compute_what_the_model_does(mask: Any, head: str, tmp_path: Path) -> None:
    made = Made(without_padding(head), tmp_path)
    for seed in range(4):
        for samples, length in ((3, 20), (1, 1), (2, 7)):
            feeds = feeds_of(mask, samples, length, seed)
            np.testing.assert_array_equal(made.runs.run(feeds, ["y"])["y"], made.expected(feeds))


def test_numbers_of_tokens_that_are_near_share_a_graph(tmp_path: Path) -> None:
    made = Made(without_padding(), tmp_path)
    for count in (33, 36, 34, 35, 33):
        feeds = feeds_of(filled(count), 4, 20, count)
        np.testing.assert_array_equal(made.runs.run(feeds, ["y"])["y"], made.expected(feeds))
    assert (made.session.captures, made.chooser.captures) == (1, 1)
    made.runs.run(feeds_of(filled(37), 4, 20), ["y"])
    assert (made.session.captures, made.chooser.captures) == (2, 1)


def test_a_binding_replays_the_graph_for_its_tokens(tmp_path: Path) -> None:
    made = Made(without_padding(), tmp_path)
    bound = made.bound(feeds_of(right))
    for seed in range(6):
        for mask in (right, full, one_empty):
            feeds = feeds_of(mask, seed=seed)
            bound.update(**feeds)
            np.testing.assert_array_equal(bound.run()["y"].numpy(), made.expected(feeds))
    assert 1 < made.session.captures < 18
    assert made.chooser.captures == 1
    bound.close()
    assert made.session.graphs == {}
    assert made.chooser.graphs == {}


def test_a_binding_has_a_bounded_number_of_graphs(tmp_path: Path) -> None:
    made = Made(without_padding(), tmp_path)
    bound = made.bound(feeds_of(full, 2, 30))
    for count in range(1, _MOST_BOUND + 5):
        feeds = feeds_of(filled(count), 2, 30)
        bound.update(**feeds)
        np.testing.assert_array_equal(bound.run()["y"].numpy(), made.expected(feeds))
        assert len(made.session.graphs) <= _MOST_BOUND


def test_the_graph_used_last_stays(tmp_path: Path) -> None:
    made = Made(without_padding(), tmp_path)
    bound = made.bound(feeds_of(full, 2, 30))
    for count in range(1, _MOST_BOUND + 5):
        for each in (count, 1):
            bound.update(**feeds_of(filled(each), 2, 30))
            bound.run()
    assert made.session.captures == len({graph_size(n) for n in range(1, _MOST_BOUND + 5)})


def test_no_more_tokens_are_computed_than_there_are_positions() -> None:
    assert indices_of(np.ones((3, 11), bool)).shape == (1, 33)  # not 36
    found = indices_of(np.arange(40) % 2 == 1)
    assert found.shape == (1, graph_size(20))
    np.testing.assert_array_equal(found[0, :20], np.arange(1, 40, 2))


def test_positions_are_counted_on_the_device(tmp_path: Path) -> None:
    front = """at = Shape<start = 1, end = 2>(ids)
  e0 = Squeeze(at)
  n0 = Range(first, e0, second)
  p0 = Gather(places, n0)
  x0 = Gather(table, ids)
  x = Add(x0, p0)"""
    made = Made(without_padding(front=front), tmp_path)
    for path in (made.model.path, made.model.chooser):
        assert "Range" not in {node.op_type for node in onnx.load(path).graph.node}
    for length in (1, 9, 33):
        feeds = feeds_of(right, length=length)
        np.testing.assert_array_equal(made.runs.run(feeds, ["y"])["y"], made.expected(feeds))


def test_other_models_keep_their_form(tmp_path: Path) -> None:
    def found(model: ir.Model) -> PackedModel | None:
        return packed_model(loadable(ir.to_proto(model), lambda: tmp_path), lambda: tmp_path)

    model = without_padding()
    assert found(model) is not None
    for text in ("", "no JSON", "7", '["of no value"]', "[]"):
        model.metadata_props[TOKENS_KEY] = text
        assert found(model) is None
    del model.metadata_props[TOKENS_KEY]
    assert found(model) is None
    model.metadata_props[TOKENS_KEY] = json.dumps(["y"])  # of another operator
    assert found(model) is None


def test_masks_that_follow_from_tokens_are_left(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (bool[n] m, float[n] x) => (int64[1, k] j) {
      i = NonZero(m)  t = Gather(x, i)  zero = Sub(x, x)  first = ReduceMin<keepdims = 0>(zero)
      kept = Greater(t, first)  flat = Squeeze(kept)  j = NonZero(flat)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    model.metadata_props[TOKENS_KEY] = json.dumps(["i", "j"])
    proto = ir.to_proto(model)
    assert packed_model(loadable(proto, lambda: tmp_path), lambda: tmp_path) is None
