"""Weights of kernels in a file of their own: mapped, not copied, and the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.optimization import result
from ortkit.targets import cpu

WIDTH = 256
FEEDS = {"x": np.random.default_rng(1).standard_normal((64, WIDTH), np.float32)}

pytestmark = pytest.mark.skipif(
    not cpu.runs_here("x86-64-v4"), reason="kernels of products are for AVX-512"
)


def model() -> onnx.ModelProto:
    """Two products of 256 kB of weights each."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[64, {WIDTH}] x) => (float[64, {WIDTH}] y) {{
      a = MatMul(x, v)  b = Gelu(a)  y = MatMul(b, w)
    }}"""
    parsed = onnx.parser.parse_model(text)
    for seed, name in enumerate("vw"):
        weight = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH), np.float32) / 16
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return parsed


@pytest.fixture(scope="module")
def optimized() -> ortkit.Optimized:
    made = ortkit.optimize(model(), ortkit.OptimizeOptions(verify=False))
    assert made.library is not None
    return made


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result, "_PACKED_FROM_BYTES", 1)


def mapped(data: Path) -> list[dict[str, int]]:
    """Return the mappings of a file in this process: kilobytes by what smaps calls them."""
    found: list[dict[str, int]] = []
    is_of_data = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_of_data = words[-1] == str(data)
            found += [{}] if is_of_data else []
        elif is_of_data and words[-1] == "kB":
            found[-1][words[0][:-1]] = int(words[1])
    return found


@pytest.mark.usefixtures("all_are_large")
def test_sessions_map_packed_weights_and_copy_nothing(
    optimized: ortkit.Optimized, tmp_path: Path
) -> None:
    files = optimized.save(tmp_path / "m.onnx")
    assert [path.suffix for path in files] == [".onnx", ".data", ".so"]
    packed = [
        {entry.key: entry.value for entry in each.external_data}
        for each in onnx.load(files[0], load_external_data=False).graph.initializer
        if each.data_location == onnx.TensorProto.EXTERNAL
    ]
    assert all(int(each["offset"]) % 4096 == 0 for each in packed)
    total = sum(int(each["length"]) for each in packed)
    assert total >= 2 * 4 * WIDTH * WIDTH
    with ortkit.Session(files[0], "cpu") as one, ortkit.Session(files[0], "cpu") as other:
        (y,), (z,) = (session.run(FEEDS).values() for session in (one, other))
        found = mapped(files[1])
    np.testing.assert_array_equal(y, z)
    assert sum(each["Size"] for each in found) * 1024 >= 2 * total
    # What is copied or written to no longer belongs to the file.
    assert sum(each["Rss"] for each in found) > 0
    assert not sum(each["Anonymous"] + each["Private_Dirty"] for each in found)
    assert not mapped(files[1])


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("how", [{"pack": "no"}, {"embed_library": True}])
def test_a_model_of_one_file_computes_the_same(
    optimized: ortkit.Optimized, how: dict[str, Any], tmp_path: Path
) -> None:
    optimized.save(tmp_path / "packed.onnx")
    files = optimized.save(tmp_path / "whole.onnx", **how)
    assert not [path for path in files if path.suffix == ".data"]
    assert onnx.load(files[0], load_external_data=False).graph.initializer[0].raw_data
    with ortkit.Session(tmp_path / "packed.onnx", "cpu") as packed:
        y = packed.run(FEEDS)["y"]
    with ortkit.Session(files[0], "cpu") as whole:
        assert whole.libraries
        np.testing.assert_array_equal(whole.run(FEEDS)["y"], y)


@pytest.mark.usefixtures("all_are_large")
def test_without_the_library_packed_weights_are_unpacked(
    optimized: ortkit.Optimized, tmp_path: Path
) -> None:
    optimized.save(tmp_path / "m.onnx")
    with ortkit.Session(model(), "cpu") as original:
        expected = original.run(FEEDS)["y"]
    with ortkit.Session(tmp_path / "m.onnx", "cpu", kernels="never") as session:
        assert session.runs_bodies
        np.testing.assert_allclose(session.run(FEEDS)["y"], expected, atol=1e-4)


def test_small_weights_stay_in_the_file(optimized: ortkit.Optimized, tmp_path: Path) -> None:
    assert [path.suffix for path in optimized.save(tmp_path / "m.onnx")] == [".onnx", ".so"]


@pytest.mark.usefixtures("all_are_large")
def test_models_without_kernels_stay_one_file(tmp_path: Path) -> None:
    plain = ortkit.optimize(model(), ortkit.OptimizeOptions(verify=False, level=1))
    assert [path.suffix for path in plain.save(tmp_path / "m.onnx")] == [".onnx"]


def test_an_unknown_way_to_pack_is_refused(optimized: ortkit.Optimized, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be 'yes'"):
        optimized.save(tmp_path / "m.onnx", pack="yes")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
