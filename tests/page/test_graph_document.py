"""What a page says is what the models are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import onnx_ir as ir
import pytest

import models
import models.catalog
from ortkit.graph.analysis.provenance import align
from ortkit.graph.io.open import open_model
from ortkit.graph.walk import nodes_below
from ortkit.page.graph.build import document_of
from ortkit.page.graph.document import Graph
from ortkit.page.graph.families import family_of
from ortkit.page.graph.scopes import repeats, scope_of
from ortkit.page.graph.write import data_of, page_text
from tests.page.page_models import AFTER, BEFORE, HOSTILE, hostile_pair, large, pair, parsed

MODELS = (("bert", "ts"), ("llama", "dynamo"), ("control_flow", "dynamo"), ("resnet50", "unfused"))


def drawn(name: str, spelling: str) -> tuple[ir.Model, Graph]:
    known = models.catalog.spellings(name)
    model = open_model(models.build(name, "tiny", spelling if spelling in known else known[0]))
    return model, document_of(model, name).graphs[0]


@pytest.fixture(scope="module", params=MODELS, ids=lambda one: one[0])
def case(request: pytest.FixtureRequest) -> tuple[ir.Model, Graph]:
    return drawn(*request.param)


def check_layout(graph: Graph) -> None:
    """Every node and group is in one layer once, and edges between items lead down."""
    count = len(graph.nodes)
    seen = Counter(item for group in graph.groups for layer in group.layers for item in layer
                   if item < count)  # fmt: skip
    assert set(seen.values()) == {1}
    assert set(seen) == {*range(count), *(~at for at in range(1, len(graph.groups)))}
    for at, group in enumerate(graph.groups):
        level = {item: depth for depth, layer in enumerate(group.layers) for item in layer}
        for item in level:
            if item < 0:
                assert graph.groups[~item].parent == at
            elif item < count:
                assert graph.group_of[item] == at
        for route in group.routes:
            leaves = route.source == route.target or route.target not in level
            way = [*route.stops] if leaves else [*route.stops, route.target]
            way = [route.source, *way] if route.source in level else way
            steps = [level[after] - level[one] for one, after in pairwise(way)]
            assert all(step == 1 for step in steps) or (not route.stops and min(steps) > 0)


def test_every_node_is_there_once(case: tuple[ir.Model, Graph]) -> None:
    model, graph = case
    nodes = list(nodes_below(model.graph))
    assert Counter(node.op_type for node in nodes) == Counter(
        node.op for node in graph.nodes if node.role == "node"
    )
    assert len({node.name for node in graph.nodes}) == len(graph.nodes)
    values = {value.name for node in nodes for value in node.outputs if value.name}
    made = {graph.values[value].name for node in graph.nodes if node.role == "node"
            for value in node.outputs}  # fmt: skip
    assert made == values


def test_edges_are_those_of_the_model() -> None:
    graph, _ = pair().graphs
    nodes, values = graph.nodes, graph.values
    found = {
        (nodes[edge.source].name, nodes[edge.target].name, values[edge.value].name)
        for edge in graph.edges
    }
    assert found == {
        ("input x", "/a/MatMul", "x"), ("input x", "/a/Add", "x"), ("/a/MatMul", "/a/Add", "p"),
        ("/a/Add", "/a/Erf", "q"), ("/a/Add", "/a/Mul", "q"), ("/a/Erf", "/a/Mul", "e"),
        ("/a/Mul", "/b/Relu", "r"), ("/b/Relu", "/b/Mul", "s"), ("/b/Constant", "/b/Mul", "c"),
        ("/b/Mul", "/b/Tanh", "t"), ("/b/Tanh", "/b/Add", "u"), ("/a/Mul", "/b/Add", "r"),
        ("/b/Add", "output y", "y"),
    }  # fmt: skip


def test_the_layout_is_one_of_layers(case: tuple[ir.Model, Graph]) -> None:
    check_layout(case[1])


@pytest.mark.parametrize("scopes", [True, False])
def test_large_graphs_have_a_layout_and_groups(scopes: bool) -> None:
    (graph,) = document_of(large(40, scopes=scopes), "large").graphs
    check_layout(graph)
    assert len(graph.groups) > 40
    stops = sum(item >= len(graph.nodes) for group in graph.groups for layer in group.layers
                for item in layer)  # fmt: skip
    assert stops < 2 * len(graph.nodes)  # edges of one source share them


def test_origins_are_those_of_the_alignment() -> None:
    document = pair()
    before, after = document.graphs
    expected = {
        label: set(group.before)
        for group in align(parsed(BEFORE), parsed(AFTER)).groups
        for label in group.after
    }
    found = {
        node.name: {before.nodes[at].name for at in origins}
        for node, origins in zip(after.nodes, document.origins, strict=True)
        if node.role == "node"
    }
    assert found == expected
    assert found["r/fused"] == {"/a/MatMul", "/a/Add", "/a/Erf", "/a/Mul"}


def test_a_fused_node_says_its_kind_and_is_in_the_group_of_its_origins() -> None:
    document = pair()
    after = document.graphs[1]
    fused = next(node for node in after.nodes if node.name == "r/fused")
    assert (fused.title, fused.detail, fused.family) == ("product_gelu", "[n, 64]", "matmul")
    assert fused.is_fused and fused.path == ("a",)
    assert "MatMul (a, b)" in document.bodies[fused.body]


def test_a_group_takes_in_what_lies_on_the_way_back_to_it() -> None:
    model = parsed(BEFORE.replace('"/a/Erf"', '"/outside/Erf"'))
    (graph,) = document_of(model, "m").graphs
    check_layout(graph)
    erf = next(at for at, node in enumerate(graph.nodes) if node.op == "Erf")
    assert graph.groups[graph.group_of[erf]].name in ("", "a")
    (graph,) = document_of(parsed(BEFORE.replace('"/b/Tanh"', '"/c/Tanh"')), "m").graphs
    check_layout(graph)


def test_torch_scopes_come_from_the_metadata() -> None:
    model = parsed(BEFORE)
    node = model.graph[0]
    scopes = "['', 'model', 'model.layers.3', 'model.layers.3.mlp', 'linear']"
    node.metadata_props["pkg.torch.onnx.name_scopes"] = scopes
    assert scope_of(node) == ("model", "layers.3", "mlp")
    node.metadata_props["pkg.torch.onnx.name_scopes"] = "__import__('os')"
    assert scope_of(node) == ("a",)


def test_repeats_are_found_with_their_shortest_period() -> None:
    block = ["MatMul", "Add", "Relu", "Mul", "Add"]
    assert repeats(["Cast", *block * 6, "Softmax"]) == (1, 5, 6)
    assert repeats([str(number) for number in range(40)]) is None


@pytest.mark.parametrize(
    ("op", "family"),
    [("MatMul", "matmul"), ("product_gelu", "matmul"), ("bias_attention", "attention"),
     ("add_layer_norm", "norm"), ("Reshape", "movement"), ("Erf", "elementwise"),
     ("ConvTranspose", "conv"), ("ReduceMean", "reduction"), ("Constant", "constant"),
     ("Loop", "control")],
)  # fmt: skip
def test_families(op: str, family: str) -> None:
    assert family_of(op) == family


def test_data_cannot_end_their_element() -> None:
    text = page_text(hostile_pair())
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert HOSTILE in data_of(hostile_pair())["graphs"][0]["title"]  # type: ignore[index]
