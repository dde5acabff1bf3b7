"""Tiles and warps that tuning chose: kernels of one region compute the same with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fused_model import fused_model, random_input, session
from interpreter import Interpreter

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.triton.choices import DEFAULTS, VALUES, read_choices
from ortkit.kernels.triton.configs import configs_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.space import space_of
from ortkit.kernels.tunable import Tunable
from ortkit.refusal import Refused
from ortkit.targets.target import Target

TARGET = Target("cuda", "sm_90")
Dims = tuple[int | str, ...]


def region(body: str, inputs: dict[str, Dims], output: Dims) -> RegionSignature:
    text = f'<opset_import: ["" : 20]> f ({", ".join(inputs)}) => (Y) {{ {body} }}'
    specs = tuple(TensorSpec(name, "float32", shape) for name, shape in inputs.items())
    return RegionSignature("chosen", text, specs, (TensorSpec("Y", "float32", output),))


SOFTMAX = "Y = Softmax <axis = -1> (X)"
ACROSS = "A = Constant <value_ints = [1]> ()  Y = ReduceSum <keepdims = 0> (X, A)"
TURNED = "T = Transpose <perm = [1, 0]> (X)  Y = Add (T, B)"
REGIONS = {
    "flat": region("S = Sigmoid (X)  Y = Mul (X, S)", {"X": ("n", 13)}, ("n", 13)),
    "rows": region(SOFTMAX, {"X": (19, 300)}, (19, 300)),
    "rows of unknown size": region(SOFTMAX, {"X": (6, "n")}, (6, "n")),
    "long rows": region(SOFTMAX, {"X": (2, 17000)}, (2, 17000)),
    "across rows": region(ACROSS, {"X": (3, 170, 40)}, (3, 40)),
    "turned": region(TURNED, {"X": ("n", 37), "B": (37, "n")}, (37, "n")),
}
SIZES = {"n": 67}


def alternatives(signature: RegionSignature) -> list[str]:
    """The smallest and the largest value of each parameter, and all largest ones together."""
    found = TritonBackend().parameters(signature, TARGET)
    ends = [f"{name}={value}" for name, values in found.items() for value in values[1::5]]
    return [*ends, ",".join(f"{name}={values[-1]}" for name, values in found.items())]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REGIONS)
def test_all_choices_compute_the_same(name: str, interpreter: Interpreter) -> None:
    signature = REGIONS[name]
    feeds = [random_input(spec, SIZES) for spec in signature.inputs]
    names = [spec.name for spec in signature.inputs]
    (expected,) = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    texts = set()
    for text in alternatives(signature):
        chosen = read_choices(text)
        assert chosen is not None
        sources = sources_of(signature, chosen)
        assert not isinstance(sources, Refused)
        texts.add(repr(sources))
        (found,) = interpreter.run(signature, feeds, sources=sources)
        assert abs(found - expected).max() <= 1e-5 * max(1.0, abs(expected).max()), text
    assert len(texts) > 2


@pytest.mark.parametrize("name", REGIONS)
def test_what_was_chosen_is_within_bounds(name: str) -> None:
    """Powers of two, a point or more for each thread, and no more than fit into registers."""
    space = space_of(REGIONS[name])
    assert not isinstance(space, Refused)
    for text in alternatives(REGIONS[name]):
        chosen = read_choices(text)
        assert chosen is not None
        for config in configs_of(space, chosen):
            points = config.rows * config.columns
            assert points.bit_count() == config.columns.bit_count() == 1
            assert config.warps == 1 or config.warps * 32 <= points
            assert points <= 32 * 16 * 32


def test_the_backend_says_what_it_can_choose() -> None:
    backend = TritonBackend()
    assert isinstance(backend, Tunable)
    assert set(backend.parameters(REGIONS["flat"], TARGET)) == {"warps", "tile"}
    assert set(backend.parameters(REGIONS["turned"], TARGET)) == {"warps", "rows", "tile"}
    assert "stages" in backend.parameters(REGIONS["long rows"], TARGET)
    for values in backend.parameters(REGIONS["long rows"], TARGET).values():
        assert values[0] == 0
    assert backend.parameters(REGIONS["flat"], Target("cpu", "x86-64-v3")) == {}
    assert backend.is_choice("tile=512,warps=4")
    assert not backend.is_choice("vector=16")


def test_kinds_tell_apart_what_runs_differently() -> None:
    kinds = {name: TritonBackend().kind(item, TARGET) for name, item in REGIONS.items()}
    assert len(set(kinds.values())) == len(REGIONS)
    half = TensorSpec("X", "float16", (19, 300)), TensorSpec("Y", "float16", (19, 300))
    text = REGIONS["rows"].body
    narrow = RegionSignature("chosen", text, half[:1], half[1:])
    assert TritonBackend().kind(narrow, TARGET) != kinds["rows"]


@pytest.mark.parametrize("text", ["tile", "tile=3", "tile=512,tile=512", "wings=2", "tile=-512"])
def test_other_texts_are_no_choices(text: str) -> None:
    assert read_choices(text) is None


def test_choices_are_read_as_they_are_written() -> None:
    for name, values in VALUES.items():
        for value in values:
            assert str(read_choices(f"{name}={value}")) == (f"{name}={value}" if value else "")
    assert read_choices("") == DEFAULTS


def test_a_kernel_is_compiled_as_chosen(tmp_path: Path) -> None:
    kernels = []
    for number, choices in enumerate(("", "tile=512,warps=2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        kernels.append(TritonBackend().compile_as(REGIONS["flat"], TARGET, folder, choices))
    default, chosen = (kernel.variants[0].steps[0] for kernel in kernels)
    assert chosen.threads == 64 != default.threads
    assert chosen.grid[0].divisor == 512 != default.grid[0].divisor
