"""Kernels compiled for every architecture: assembled, without spills, within shared memory."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
from fused_model import bias_gelu
from fuzz.grow import numbered_region
from interpreter import chosen
from onnx import helper
from single_node import LATE
from test_pointwise import BODIES, HEAD, OURS, nodes
from test_region_kernels import CASES
from test_region_kernels import signature_of as signature_of_case
from test_triton_regions import ALL

from ortkit.errors import KernelError
from ortkit.kernels.cuda import MAX_GRID, SHARED_BYTES
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.triton.build import Compiled, compile_step
from ortkit.kernels.triton.configs import configs_of, grid_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import blocks_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.kernels.triton.space import space_of
from ortkit.refusal import Refused
from ortkit.targets.cuda import ARCHITECTURES, PTX_ARCHITECTURE
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
#: Of a block without opting in.
_SHARED_BYTES = 48 << 10
#: What ptxas keeps on the stack around the slow path of a division.
_CALL_BYTES = 8


def signature_of(name: str, dtype: str = "float32") -> RegionSignature:
    """A case, its floats of another type."""
    case = signature_of_case(name, ALL[name])

    def changed(spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=dtype) if spec.dtype == "float32" else spec

    return replace(
        case, inputs=tuple(map(changed, case.inputs)), outputs=tuple(map(changed, case.outputs))
    )


#: Name -> element type: each kind of space, and of the sizes that are known.
KINDS = {
    "residual layer norm": "float16",
    "masked softmax": "bfloat16",
    "a norm of rows in a loop": "float16",
    "sums across rows": "float32",
    "a norm of one long row": "float16",
    "rotary": "float16",
    "a transposed sum": "bfloat16",
    "largest": "float32",
}


def variants_of(signature: RegionSignature) -> Sequence[VariantSource]:
    found = sources_of(signature)
    assert not isinstance(found, Refused), found.reason
    return found


def assert_fits(found: Compiled, folder: Path, where: str, most: int = _SHARED_BYTES) -> None:
    """No register is spilled but around a call, shared memory is within `most` bytes."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    path = folder / "kernel.cubin"
    path.write_bytes(found.cubin)
    usage = subprocess.run(
        [tool, "-res-usage", path], check=True, capture_output=True, text=True
    ).stdout
    numbers = dict(re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", usage))
    assert int(numbers["STACK"]) <= _CALL_BYTES and numbers["LOCAL"] == "0", f"{where}: {usage}"
    assert 0 < int(numbers["REG"]) <= 255
    assert int(numbers["SHARED"]) + found.shared_bytes <= most, where
    assert b"/tmp" not in found.cubin
    assert str(folder) not in found.ptx


def compile_all(
    signature: RegionSignature, architectures: Sequence[int], folder: Path, most: int = 100
) -> None:
    for number, variant in enumerate(variants_of(signature)[:most]):
        for step in variant.steps:
            for architecture in architectures:
                where = f"{signature.name}, variant {number}, sm_{architecture}"
                found = compile_step(step, architecture, folder)
                assert_fits(found, folder, where, SHARED_BYTES[architecture])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_kind_of_kernel_for_each_architecture(architecture: int, tmp_path: Path) -> None:
    for name, dtype in KINDS.items():
        compile_all(signature_of(name, dtype), [architecture], tmp_path, most=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["masked softmax", "heads", "sums across rows", "a transposed sum"]
)
def test_each_variant(name: str, tmp_path: Path) -> None:
    compile_all(signature_of(name, "float16"), [90], tmp_path)


def test_every_operator_at_once_for_one_architecture(tmp_path: Path) -> None:
    for name, body in BODIES.items():
        inputs = [
            TensorSpec(name, "float32", shape)
            for name, shape in {"X": (64, 37), "Z": (64, 37), "S": (64, 1), "B": (37,)}.items()
        ]
        text = f"{HEAD} f (X, Z, S, B) => (Y) {{ {body.replace('C0', 'X')} }}"
        outputs = (TensorSpec("Y", "float32", (64, 37)),)
        compile_all(RegionSignature(name, text, tuple(inputs), outputs), [80], tmp_path, most=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op_type", ["Mod", "Pow", "Sin", "BitShift"])
def test_operator_in_every_type(op_type: str, tmp_path: Path) -> None:
    assert_operator_compiles(op_type, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("op_type", sorted(set(POINTWISE_OPS) - OURS))
def test_every_operator_in_every_type(op_type: str, tmp_path: Path) -> None:
    assert_operator_compiles(op_type, tmp_path)


def assert_operator_compiles(op_type: str, folder: Path) -> None:
    """All its types together, so many to a kernel."""
    found = list(nodes(op_type))
    for start in range(0, len(found), 14):
        written, inputs, outputs = [], [], []
        for place, node in enumerate(found[start : start + 14]):
            names = [f"X{place}_{operand}" for operand in range(len(node.inputs))]
            written.append(helper.make_node(op_type, names, [f"Y{place}"], **node.attributes))
            dtypes = zip(names, node.inputs, strict=True)
            inputs += [TensorSpec(name, dtype, (100,)) for name, dtype in dtypes]
            assert isinstance(node.output, str)
            outputs.append(TensorSpec(f"Y{place}", node.output, (100,)))
        opset = helper.make_opsetid("", LATE.get(op_type, 20))
        names, results = [spec.name for spec in inputs], [spec.name for spec in outputs]
        function = helper.make_function("d", "f", names, results, written, [opset])
        signature = RegionSignature("op", body_text(function), tuple(inputs), tuple(outputs))
        compile_all(signature, [90], folder, most=1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [7, 469, 497])
def test_random_regions(number: int, tmp_path: Path) -> None:
    compile_all(numbered_region(number).signature(), [90], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, 2000, 13))
def test_many_random_regions(number: int, tmp_path: Path) -> None:
    signature = numbered_region(number).signature()
    if not isinstance(sources_of(signature), Refused):
        compile_all(signature, [90], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_every_variant_for_every_architecture(name: str, dtype: str, tmp_path: Path) -> None:
    if dtype == "float32" or "Constant <value_float" not in ALL[name].body:
        compile_all(signature_of(name, dtype), ARCHITECTURES, tmp_path)


def test_a_kernel_is_its_variants_and_their_images(tmp_path: Path) -> None:
    signature = bias_gelu("n", 48)
    target = Target("cuda", "sm_90, sm_86")
    kernel = TritonBackend().compile(signature, target, tmp_path)
    assert kernel.target == Target("cuda", "sm_86,sm_90")
    assert kernel.key == signature.key
    found = {(item.variant, item.step, item.architecture, item.is_ptx) for item in kernel.images}
    assert len(kernel.variants) == 3
    assert found == {
        (variant, 0, architecture, is_ptx)
        for variant in range(3)
        for architecture, is_ptx in [(86, False), (90, False), (PTX_ARCHITECTURE, True)]
    }
    for image in kernel.images:
        content = image.path.read_bytes()
        if image.is_ptx:
            assert b".target sm_80" in content
            assert b".version 8.0" in content
            assert content.endswith(b"\n\0")
        else:
            assert content.startswith(b"\x7fELF")
        entry = kernel.variants[image.variant].steps[image.step].entry
        assert entry.encode() in content


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        kernel = TritonBackend().compile(bias_gelu(8, 48), Target("cuda", "sm_90"), folder)
        contents.append([image.path.read_bytes() for image in kernel.images])
    assert contents[0] == contents[1]


def test_what_triton_does_not_compile_is_one_line(tmp_path: Path) -> None:
    (variant, *_) = variants_of(bias_gelu(8, 48))
    (step,) = variant.steps
    broken = replace(step, text=step.text.replace("tl.store(", "tl.stroe("))
    with pytest.raises(KernelError, match="Triton failed on a kernel for sm_90: ") as caught:
        compile_step(broken, 90, tmp_path)
    assert "\n" not in str(caught.value)


def test_more_parameters_than_are_passed_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.kernels.triton.backend.MAX_ARGUMENTS", 3)
    TritonBackend().compile(bias_gelu(8, 48), Target("cuda", "sm_90"), tmp_path)
    with pytest.raises(KernelError, match="a kernel of 4 parameters, at most 3 are passed"):
        TritonBackend().compile(bias_gelu("n", 48), Target("cuda", "sm_90"), tmp_path)


def test_what_no_grid_has_room_for_is_not_turned() -> None:
    for size, kind in ((2_000_000, "turned"), (3_000_000, "flat")):
        body = f"{HEAD} f (X) => (Y) {{ Y = Transpose (X) }}"
        x, y = (TensorSpec("T", "float32", shape) for shape in ((size, 9), (9, size)))
        found = space_of(RegionSignature("t", body, (x,), (y,)))
        assert not isinstance(found, Refused)
        assert found.kind == kind
        for config in configs_of(found):
            for (extent, by), most in zip(grid_of(found, config), MAX_GRID, strict=True):
                assert extent.static is not None
                assert -(-extent.static // by) <= most


@pytest.mark.parametrize(
    ("shape", "perm"), [(("n", "m"), (1, 0)), (("b", "n", 24), (0, 2, 1)), (("n", 24), (1, 0))]
)
def test_what_is_turned_has_a_variant_whatever_its_sizes(
    shape: tuple[int | str, ...], perm: tuple[int, ...]
) -> None:
    body = f"{HEAD} f (X) => (Y) {{ Y = Transpose <perm = [{', '.join(map(str, perm))}]> (X) }}"
    x = TensorSpec("X", "float16", shape)
    y = TensorSpec("Y", "float16", tuple(shape[axis] for axis in perm))
    signature = RegionSignature("t", body, (x,), (y,))
    sources = variants_of(signature)
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    names = [dim for dim in shape if isinstance(dim, str)]
    for values in product((1, 24, 3_000_000, 6_000_000), repeat=len(names)):
        sizes = dict(zip(names, values, strict=True))
        if values.count(3_000_000) + values.count(6_000_000) > 1:
            continue  # that is more memory than there is
        ordered = [sizes[name] for name in symbols_of((x, y))]
        variant = variants[chosen(variants, ordered, is_aligned=True)]
        for one, most in zip(variant.steps[0].grid, MAX_GRID, strict=True):
            assert blocks_of(one, ordered) <= most, sizes


def test_what_is_not_one_space_is_refused() -> None:
    body = f"{HEAD} f (X, B) => (Y) {{ Y = MatMul (X, B) }}"
    specs = tuple(TensorSpec(name, "float32", (4, 4)) for name in "XBY")
    matmul = RegionSignature("matmul", body, specs[:2], specs[2:])
    refused = TritonBackend().accepts(matmul, Target("cuda"))
    assert refused == Refused("a product with a tensor of type float32")
    assert TritonBackend().accepts(bias_gelu(8, 48), Target("cuda")) is None
    assert TritonBackend().accepts(bias_gelu(8, 48), Target("cpu")) is not None
    assert set(CASES) < set(ALL)
