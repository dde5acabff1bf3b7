"""What is claimed of whole models, checked value by value without ONNX Runtime's help."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from models.feeds import feeds
from ortkit.graph.io.open import open_model
from ortkit.kernels.build.library import missing_toolchain
from ortkit.kernels.signature import TensorSpec
from ortkit.provider.own import building
from ortkit.provider.own.building import Built, build
from ortkit.provider.own.planning import plan
from ortkit.provider.own.program import Program
from ortkit.provider.own.sizes import unsolved
from ortkit.provider.own.source import programs_source
from ortkit.targets.target import Target
from tests.provider.own_programs import ProgramError, run_program, worst_error

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason="no kernel toolchain")
EPSILON = 2.0**-23


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def handed_over(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    """Return a model as a provider sees it, after ONNX Runtime's first rewrites."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "basic.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return open_model(folder / "basic.onnx")


def built(model: ir.Model, cache: Path, level: int = 3) -> Built:
    return build(plan(model, Target(), level), Target(), "auto", cache)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "spelling", "at_least"),
    [
        ("bert", "dynamo", 0.5),
        ("bert", "ts", 0.4),
        ("bert", "dynamo23", 0.4),
        ("gpt2", "dynamo", 0.4),
        ("llama", "dynamo", 0.5),
        ("vit", "dynamo", 0.6),
        ("whisper_encoder", "dynamo", 0.6),
        ("decoder_kv", "dynamo", 0.2),
        ("unet", "dynamo", 0.0),
        ("detector", "dynamo", 0.0),
        ("lstm", "dynamo", 0.0),
        ("control_flow", "dynamo", 0.0),
    ],
)
def test_claims_compute_what_their_nodes_compute(
    name: str, spelling: str, at_least: float, tmp_path: Path, cache: Path
) -> None:
    chosen = spelling if spelling in models.spellings(name) else models.spellings(name)[-1]
    proto = models.build(name, "tiny", chosen)
    model = handed_over(proto, tmp_path)
    found = built(model, cache)
    claimed = sum(len(claim.nodes) for claim in found.plan.claims)
    assert claimed >= at_least * len(model.graph), f"{claimed} of {len(model.graph)} nodes"
    if found.library is None:
        return
    errors = worst_error(model, found.plan, found.library, feeds(proto))
    assert max(errors.values()) < 32 * EPSILON, errors


def test_no_node_is_claimed_twice_and_groups_have_an_order(tmp_path: Path, cache: Path) -> None:
    model = handed_over(models.build("llama"), tmp_path)
    claims = built(model, cache).plan.claims
    nodes = [node for claim in claims for node in claim.nodes]
    assert len(nodes) == len(set(nodes)) > 0
    makers = {v.name: claim.at for claim in claims for n in claim.nodes for v in n.outputs}
    for claim in claims:  # what is read of other claims is what these give
        given = {name for other in claims if other is not claim for name in other.outputs}
        assert all(name in given for name in claim.inputs if makers.get(name) not in (None,))


def test_masks_that_layers_share_are_computed_once(tmp_path: Path, cache: Path) -> None:
    """A mask has other numbers in the copy: no value of the original is like it."""
    model = handed_over(models.build("bert"), tmp_path)
    found = built(model, cache).plan
    regions = [claim for claim in found.claims if not claim.weights]
    carrying = [region for region in regions if set(region.program.outputs) & _carriers(region)]
    reading = [item for item in regions if set(item.program.inputs) & _carriers(item)]
    assert carrying
    assert len(reading) > 1
    assert {one.bundle for one in reading} == {one.bundle for one in carrying}
    given = {name for one in carrying for name in one.outputs}
    assert all(given & set(one.inputs) for one in reading)


def _carriers(claim: object) -> set[int]:
    return set(claim.program.views.values())  # type: ignore[attr-defined]


def test_nothing_is_claimed_below_level_2(tmp_path: Path) -> None:
    model = handed_over(models.build("bert"), tmp_path)
    assert plan(model, Target(), 1).claims == ()
    assert plan(model, Target(), 3, "off").claims == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_b0"])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_convolutions_are_claimed_as_a_whole_chain(
    name: str, is_ahead: bool, tmp_path: Path, cache: Path
) -> None:
    proto = models.build(name)
    model = handed_over(proto, tmp_path)
    wanted = plan(model, Target(), 2, is_ahead=is_ahead)
    chains = [claim for claim in wanted.claims if claim.program.name == "convolutions"]
    (chain,) = chains
    convolutions = [node for node in model.graph if node.op_type == "Conv"]
    assert set(convolutions) <= set(chain.nodes)
    assert bool(chain.weights) is not is_ahead
    assert bool(chain.program.constants) is is_ahead
    found = build(wanted, Target(), "auto", cache)
    assert found.library is not None
    errors = worst_error(model, found.plan, found.library, feeds(proto))
    assert max(errors.values()) < 32 * EPSILON, errors


def residuals(opset: int) -> onnx.ModelProto:
    """Two inverted residuals: 1x1, depthwise, 1x1 and a sum."""
    random, lines, shapes = np.random.default_rng(0), [], dict[str, tuple[int, ...]]()
    for at in range(2):
        lines.append(
            f"""a{at} = Conv(x{at}, w{at}) b{at} = Relu(a{at})
            c{at} = Conv <group = 96, pads = [1, 1, 1, 1]> (b{at}, d{at}) e{at} = Relu(c{at})
            f{at} = Conv(e{at}, v{at}) x{at + 1} = Add(f{at}, x{at})"""
        )
        shapes |= {f"w{at}": (96, 16, 1, 1), f"d{at}": (96, 1, 3, 3), f"v{at}": (16, 96, 1, 1)}
    proto = onnx.parser.parse_model(
        f"""<ir_version: 6, opset_import: ["" : {opset}]>
        g (float[1, 16, 28, 28] x0) => (float[1, 16, 28, 28] x2) {{ {" ".join(lines)} }}"""
    )
    for name, shape in shapes.items():
        weight = (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return proto


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opset", [8, 11, 13])
def test_chains_of_old_opsets_are_claimed(opset: int, tmp_path: Path, cache: Path) -> None:
    """The kernels that change the layout do not need the model's own opset."""
    proto = residuals(opset)
    model = handed_over(proto, tmp_path)
    wanted = plan(model, Target(), 2)
    assert [claim.program.name for claim in wanted.claims] == ["convolutions"]
    found = build(wanted, Target(), "auto", cache)
    assert found.library is not None
    errors = worst_error(model, found.plan, found.library, feeds(proto))
    assert max(errors.values()) < 32 * EPSILON, errors


def test_a_chain_that_does_not_pay_is_left_to_the_runtime(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[1, 64, 28, 28] x) => (float[1, 64, 12, 12] z)
        { y = Conv <strides = [2, 2], pads = [2, 2, 2, 2]> (x, w)  z = Conv (y, v) }"""
    )
    for name, side in (("w", 5), ("v", 3)):
        weight = np.full((64, 64, side, side), 0.01, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    model = handed_over(proto, tmp_path)
    assert plan(model, Target(), 2).claims == ()


TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x, float[n, 64] z) => (float[n, 64] y)
<float[64] scale = {%s}, float[64] bias = {%s}>
{ s = Add (x, z)  y = LayerNormalization <axis = -1> (s, scale, bias) }
""" % (", ".join("1.5" for _ in range(64)), ", ".join("0.25" for _ in range(64)))  # noqa: UP031


def test_constants_are_baked_in_and_sizes_checked(cache: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    found = built(model, cache, level=2)
    (claim,) = found.plan.claims
    assert claim.inputs == ("x", "z")
    assert found.library is not None
    random = np.random.default_rng(0)
    x, z = (random.standard_normal((7, 64), np.float32) for _ in range(2))
    (y,) = run_program(found.library, claim.program, [x, z])
    s = (x + z).astype(np.float64)
    norm = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, norm * 1.5 + 0.25, rtol=1e-5, atol=1e-5)
    (empty,) = run_program(found.library, claim.program, [x[:0], z[:0]])
    assert empty.shape == (0, 64)
    with pytest.raises(ProgramError, match="2: a size is not n, as it was in the model"):
        run_program(found.library, claim.program, [x, z[:3]])
    with pytest.raises(ProgramError, match="2: a size is not 64"):
        run_program(found.library, claim.program, [x[:, :32].copy(), z[:, :32].copy()])
    with pytest.raises(ProgramError, match="is absent or not of rank 2"):
        run_program(found.library, claim.program, [x[0], z])
    with pytest.raises(
        ProgramError, match="2: a kernel of 2 inputs and 1 outputs is given others"
    ):
        run_program(found.library, claim.program, [x])


@pytest.mark.parametrize(("first", "second"), [("a", "c"), ("c", "a")])
def test_results_are_what_others_read(first: str, second: str) -> None:
    # The rewritten copy computes the Sigmoid once, and the product reads it from there.
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 512] x, float[512, 64] w) => (float[n, 512] r, float[n, 64] m)
    {{ {first} = Sigmoid (x)  {second} = Sigmoid (x)
       b = Exp (a)  r = Erf (b)  m = MatMul (c, w) }}"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    for claim in plan(model, Target(), 3).claims:
        values = {value.name: value for node in claim.nodes for value in node.outputs}
        for name in claim.outputs:
            readers = {use.node for use in values[name].uses()}
            assert values[name].is_graph_output() or readers - set(claim.nodes), name


def test_a_library_is_made_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    first = built(model, tmp_path, level=2)
    assert first.compiled == 1
    assert first.library is not None
    content = first.library.read_bytes()
    again = built(model, tmp_path, level=2)
    assert (again.library, again.compiled) == (first.library, 0)
    first.library.write_bytes(content[:-100])
    repaired = built(model, tmp_path, level=2)
    assert repaired.library == first.library
    assert first.library.read_bytes() == content


def test_other_constants_are_another_library(cache: Path) -> None:
    one = built(ir.from_proto(onnx.parser.parse_model(TEXT)), cache, level=2)
    other = TEXT.replace("0.25", "0.5")
    two = built(ir.from_proto(onnx.parser.parse_model(other)), cache, level=2)
    assert one.library != two.library
    assert two.compiled == 0  # the kernel is the same


def test_what_is_written_otherwise_is_another_library(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    one = built(model, cache, level=2)
    monkeypatch.setattr(building, "fingerprint", lambda: "another")
    two = built(model, cache, level=2)
    assert one.library != two.library


def test_sizes_that_later_inputs_tell_are_checked() -> None:
    dims = (("a*b", 64), ("a", 64), ("b", 64))
    tensors = tuple(TensorSpec(str(i), "float32", dim) for i, dim in enumerate(dims))
    program = Program("copies", tensors, (0, 1, 2), {}, {}, (), ())
    assert unsolved(program) is None
    source, _ = programs_source([program], {})
    assert "(x0[0]) != (s0 * s1)" in source


@pytest.mark.parametrize("size", [1, 3, 8])
def test_products_of_sizes_are_told_from_inputs(size: int, cache: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 4, 64] x) => (float[m, 64] y) <int64[2] rows = {-1, 64}>
    { r = Reshape (x, rows)  e = Exp (r)  y = Tanh (e) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = built(model, cache)
    assert found.library is not None
    x = np.random.default_rng(1).standard_normal((size, 4, 64), np.float32)
    errors = worst_error(model, found.plan, found.library, {"x": x})
    assert max(errors.values()) < 16 * EPSILON


@pytest.mark.parametrize("names", [("b", "n m"), ("b", "n+1"), ("a b", "c d")])
def test_rows_without_a_name_before_a_reshape_whose_sizes_are_data(
    names: tuple[str, str],
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[b, n, 512] x, int64[2] s) => (float[rows, 512] y) <float[rows, 512] r>
    { r = Reshape (x, s)  m = MatMul (r, w)  y = Sigmoid (m) }"""
    model = onnx.parser.parse_model(text)
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, names, strict=False):
        dim.dim_param = name
    weight = np.ones((512, 512), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    found = plan(ir.from_proto(model), Target(), 3)
    claimed = {node.op_type for claim in found.claims for node in claim.nodes}
    assert claimed == {"MatMul", "Sigmoid"}
