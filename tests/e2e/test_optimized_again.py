"""A model that was optimized before and is optimized again: its kernels are there again."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from models.catalog import BUILDERS, build
from ortkit import OptimizeOptions, optimize
from ortkit.cli.main import run
from ortkit.kernels.layouts.bf16_blocks import pack_weight, unpack_text
from ortkit.optimization.result import Optimized
from ortkit.rewrite.log import DENIED
from ortkit.runtime.session import Session
from ortkit.targets.cpu import runs_here
from ortkit.verify.inputs.feeds import make_feeds

pytest.importorskip("onnxruntime")
pytest.importorskip("tvm")
quantization = pytest.importorskip("onnxruntime.quantization")

FUSED = "ortkit.fused"
QUICK = ("gpt2", "efficientnet_b0", "control_flow")
DEPTH, COLUMNS = 64, 64


def fused(path: Path) -> list[str]:
    """Return the fused op types of the main graph, sorted."""
    return sorted(node.op_type for node in onnx.load(path).graph.node if node.domain == FUSED)


def kinds(ops: list[str]) -> Counter[str]:
    return Counter(op.rpartition("_")[0] for op in ops)


def checked(source: Path | onnx.ModelProto, path: Path, options: OptimizeOptions) -> Optimized:
    """Optimize and save; the result is verified, and its metadata are those of its library."""
    result = optimize(source, options)
    found = result.report.verification
    assert found is not None
    # Kernels for a GPU or another processor are not run here, which is said.
    is_elsewhere = options.target == "cuda" or not runs_here(options.cpu)
    is_partly = is_elsewhere and found.lacks_hardware_only
    assert found.verdict == "yes" or is_partly, found.reason
    files = result.save(path)
    model = onnx.load(path)
    told = {entry.key: entry.value for entry in model.metadata_props}
    if result.library is None:
        assert not any(key.startswith("ortkit.library") for key in told)
    else:
        assert told["ortkit.library"] == files[-1].name
        assert told["ortkit.library.sha256"] == hashlib.sha256(files[-1].read_bytes()).hexdigest()
        assert told["ortkit.library.target"] == options.target
    assert not any(entry.key.startswith("ortkit") for node in model.graph.node
                   for entry in node.metadata_props)  # fmt: skip
    return result


def again(proto: onnx.ModelProto, folder: Path, options: OptimizeOptions) -> None:
    """Optimize three times: the second result has what the first has, the third is the second."""
    first = checked(proto, folder / "a.onnx", options)
    assert first.report.source_kernels == ""
    second = checked(folder / "a.onnx", folder / "b.onnx", options)
    optimize(folder / "b.onnx", replace(options, verify=False)).save(folder / "c.onnx")
    assert len(fused(folder / "b.onnx")) == len(fused(folder / "a.onnx")) > 0
    assert kinds(fused(folder / "c.onnx")) == kinds(fused(folder / "b.onnx"))
    assert second.report.after.nodes <= first.report.after.nodes
    assert "formed again" in second.report.source_kernels
    assert "without a kernel" not in second.report.source_kernels
    assert second.library is not None
    (feeds, *_) = make_feeds(ir.from_proto(proto), 1)
    made = [Session(folder / name, kernels="require").run(feeds) for name in ("a.onnx", "b.onnx")]
    for name, value in made[0].items():
        np.testing.assert_allclose(value, made[1][name], rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", QUICK)
def test_kernels_are_there_again(name: str, tmp_path: Path) -> None:
    again(build(name, "tiny"), tmp_path, OptimizeOptions(samples=1))


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("name", sorted(BUILDERS.keys() - {"lstm"}))
def test_every_architecture_has_its_kernels_again(name: str, level: int, tmp_path: Path) -> None:
    if level == 3 and name in ("resnet50", "mobilenet_v2"):
        pytest.skip("at level 3 ONNX Runtime's own fused convolutions are taken")
    again(build(name, "tiny"), tmp_path, OptimizeOptions(level=level))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "efficientnet_b0", "llama"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_kernels_for_cuda_are_there_again(name: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    first = optimize(build(name, "tiny"), OptimizeOptions(target="cuda", precision=precision))  # type: ignore[arg-type]
    first.save(tmp_path / "a.onnx")
    second = checked(tmp_path / "a.onnx", tmp_path / "b.onnx", OptimizeOptions(target="cuda"))
    assert "without a kernel" not in second.report.source_kernels
    assert second.report.after.nodes <= first.report.after.nodes


def test_a_quantized_model_has_its_kernels_again(tmp_path: Path) -> None:
    onnx.save(build("bert", "tiny"), tmp_path / "float.onnx")
    quantization.quantize_dynamic(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    again(onnx.load(tmp_path / "int8.onnx"), tmp_path, OptimizeOptions(samples=1))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a model with fused nodes, which tests only read."""
    path = tmp_path_factory.mktemp("gpt2") / "a.onnx"
    checked(build("gpt2", "tiny"), path, OptimizeOptions(samples=1))
    return path


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (OptimizeOptions(kernels="off", samples=1), "--kernels off"),
        (OptimizeOptions(level=1, samples=1), "level 1 makes no kernels"),
    ],
)
def test_without_kernels_the_nodes_are_plain_and_the_report_says_so(
    options: OptimizeOptions, reason: str, gpt2: Path, tmp_path: Path
) -> None:
    count = len(fused(gpt2))
    result = checked(gpt2, tmp_path / "b.onnx", options)
    assert result.library is None
    assert fused(tmp_path / "b.onnx") == []
    assert not onnx.load(tmp_path / "b.onnx").functions
    said = result.report.source_kernels
    assert said.startswith(f"{count} fused nodes that it had were inlined; without a kernel now")
    assert said.endswith(reason)


def test_in_place_the_library_is_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    optimize(build("gpt2", "tiny"), OptimizeOptions(verify=False)).save(path, embed_library=True)
    before = fused(path)
    assert run(["optimize", str(path), "--in-place"]) == 0
    assert "formed again" in capsys.readouterr().err
    assert fused(path) == before
    told = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert "ortkit.library.data" not in told
    assert told["ortkit.library"] == "m.ops.so"
    assert Session(path, kernels="require").notes == ()


# ---- fused nodes that are not formed again ---------------------------------------------------


def packed(tail: str = "y = Add(p, b)") -> onnx.ModelProto:
    """Return two fused products of packed weights in bfloat16, as `--precision bf16` makes them.

    They read one x: inlined, they share the node that widens it, and are no regions then.
    """
    unpack = unpack_text("packed", "w", DEPTH, COLUMNS)
    op = "bf16_product_0123456789ab"
    text = f"""<ir_version: 10, opset_import: ["" : 20, "{FUSED}" : 1]>
    g (float[n, {DEPTH}] x) => (float[n, {COLUMNS}] z0, float[n, {COLUMNS}] z1) {{
      y0 = {FUSED}.{op}(x, packed0, b)  z0 = Relu(y0)
      y1 = {FUSED}.{op}(x, packed1, b)  z1 = Relu(y1)
    }}
    <domain: "{FUSED}", opset_import: ["" : 20]>
    {op} (x, packed, b) => (y) {{
      h = Cast<to: int = 16>(x)  wide = Cast<to: int = 1>(h)  {unpack}  p = MatMul(wide, w)  {tail}
    }}"""
    proto = onnx.parser.parse_model(text)
    generator = np.random.default_rng(3)
    for name in ("packed0", "packed1"):
        weight = pack_weight(generator.standard_normal((DEPTH, COLUMNS), np.float32))
        data = weight.tobytes()
        tensor = onnx.helper.make_tensor(
            name, onnx.TensorProto.BFLOAT16, weight.shape, data, raw=True
        )
        proto.graph.initializer.append(tensor)
    bias = generator.standard_normal(COLUMNS, np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b"))
    return proto


LEVEL = "x86-64-v4-bf16"
needs_bf16 = pytest.mark.skipif(not runs_here(LEVEL), reason=f"no {LEVEL}")


def test_a_packed_product_stays_and_its_kernel_is_made_again(tmp_path: Path) -> None:
    result = checked(packed(), tmp_path / "a.onnx", OptimizeOptions(cpu=LEVEL))
    regions = [region for region in result.report.regions if region.kept_from]
    assert [item.kind for item in regions] == ["bf16_product"] * 2
    assert len({one.emitted_as for one in regions}) == 1
    assert fused(tmp_path / "a.onnx").count(regions[0].emitted_as or "") == 2
    assert "kept, with kernels made again: bf16_product (2)" in result.report.source_kernels
    assert onnx.load(tmp_path / "a.onnx").graph.initializer[0].data_type == 16  # as it lay
    again = checked(tmp_path / "a.onnx", tmp_path / "b.onnx", OptimizeOptions(cpu=LEVEL))
    assert fused(tmp_path / "b.onnx") == fused(tmp_path / "a.onnx")
    assert again.library is not None
    assert result.library is not None
    assert again.library.read_bytes() == result.library.read_bytes()


@needs_bf16
def test_a_kept_node_runs_on_its_kernel(tmp_path: Path) -> None:
    checked(packed(), tmp_path / "a.onnx", OptimizeOptions(cpu=LEVEL))
    onnx.save(packed(), tmp_path / "plain.onnx")
    x = np.random.default_rng(1).standard_normal((5, DEPTH), np.float32)
    made = Session(tmp_path / "a.onnx", kernels="require").run({"x": x})["z0"]
    plain = Session(tmp_path / "plain.onnx").run({"x": x})["z0"]
    np.testing.assert_allclose(made, plain, rtol=1e-4, atol=1e-4)


def test_what_has_no_kernel_on_another_processor_is_named(tmp_path: Path) -> None:
    options = OptimizeOptions(cpu="x86-64-v3")
    result = checked(packed(), tmp_path / "a.onnx", options)
    assert not any(region.kept_from and region.emitted_as for region in result.report.regions)
    said = result.report.source_kernels
    assert "without a kernel now: bf16_product (2): " in said
    assert "x86-64-v3" in said
    assert not any("bf16_product" in op for op in fused(tmp_path / "a.onnx"))


def test_a_kept_node_is_denied_by_its_id(tmp_path: Path) -> None:
    name = "fuse-regions:kept:bf16_product_0123456789ab"
    options = OptimizeOptions(cpu=LEVEL, denied=frozenset({name}))
    result = checked(packed(), tmp_path / "a.onnx", options)
    assert not any("bf16_product" in op for op in fused(tmp_path / "a.onnx"))
    assert DENIED in result.report.source_kernels


def test_kernels_for_another_target_are_not_kept(tmp_path: Path) -> None:
    proto = packed()
    onnx.helper.set_model_props(proto, {"ortkit.library.target": "cuda"})
    result = checked(proto, tmp_path / "a.onnx", OptimizeOptions(cpu=LEVEL))
    assert "their kernels were for cuda" in result.report.source_kernels


@pytest.mark.parametrize(
    "tail",
    [
        " ".join(f"t{i} = Neg({f't{i - 1}' if i else 'p'})" for i in range(300))
        + " y = Add(t299, b)",
        "y = own.Unknown(p, b)",
        "n = NonZero(p)  k = Cast<to: int = 1>(n)  s = ReduceSum(k)  y = Add(p, s)",
    ],
)  # fmt: skip
def test_bodies_of_others_are_inlined(tail: str, tmp_path: Path) -> None:
    """What only looks like ours is no kernel, and no fault either."""
    proto = packed(tail)
    if "own." in tail:
        proto.opset_import.add(domain="own", version=1)
        proto.functions[0].opset_import.add(domain="own", version=1)
        function = proto.functions.add(domain="own", name="Unknown")
        function.input.extend("pb")
        function.output.append("y")
        function.node.append(onnx.helper.make_node("Add", ["p", "b"], ["y"]))
        function.opset_import.add(domain="", version=20)
    result = checked(proto, tmp_path / "a.onnx", OptimizeOptions(cpu=LEVEL))
    assert result.report.source_kernels.startswith("2 fused nodes that it had were inlined")


def test_ops_of_users_stay_as_they_are(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
    g (float[n, 64] x) => (float[n, 64] z) { y = own.Squared(x) t = Exp(y) z = Neg(t) }
    <domain: "own", opset_import: ["" : 20]>
    Squared (x) => (y) { r = Relu(x)  y = Mul(r, r) }"""
    proto = onnx.parser.parse_model(text)
    proto.functions[0].metadata_props.add(key="ortkit.found", value="own::Squared")
    checked(proto, tmp_path / "a.onnx", OptimizeOptions())
    checked(tmp_path / "a.onnx", tmp_path / "b.onnx", OptimizeOptions())
    for name in ("a.onnx", "b.onnx"):
        assert "Squared" in [node.op_type for node in onnx.load(tmp_path / name).graph.node]
