"""Random regions, broadcasts and sizes: the kernel agrees with the function that it stands for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, random_input, session, tensor

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.targets.target import Target

COUNT = 24
UNARY = ["Tanh", "Sigmoid", "Erf", "Relu", "Neg", "Abs", "Gelu", "HardSwish"]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]


def random_signature(seed: int) -> RegionSignature:
    """A DAG of 3 to 12 nodes over 1 to 4 inputs; values stay within a few units of 1."""
    rng = random.Random(seed)
    dims: list[int | str] = rng.sample(["a", "b", "c"], rng.randint(1, 2))
    dims += [rng.choice([1, 3, 16, 29, 64])] * rng.randint(0, 2)
    rng.shuffle(dims)
    inputs: list[TensorSpec] = [tensor("X0", *dims)]
    for index in range(1, rng.randint(1, 4)):
        shape = [dim if rng.random() < 0.6 else 1 for dim in dims]
        inputs.append(tensor(f"X{index}", *shape[rng.randint(0, len(shape)) :]))
    nodes, values, full = [], [spec.name for spec in inputs], ["X0"]
    for index in range(rng.randint(3, 12)):
        first = full[-1] if rng.random() < 0.7 else rng.choice(values)
        if rng.random() < 0.5:
            nodes.append(f"V{index} = {rng.choice(UNARY)} ({first})")
        else:
            nodes.append(f"P{index} = {rng.choice(BINARY)} ({first}, {rng.choice(values)})")
            nodes.append(f"V{index} = Tanh (P{index})")
        values.append(f"V{index}")
        if first in full:
            full.append(f"V{index}")
    nodes.append(f"Y = Add ({full[-1]}, X0)")
    names = ", ".join(spec.name for spec in inputs)
    body = f'<opset_import: ["" : 20]> f ({names}) => (Y, {full[-1]}) {{ {" ".join(nodes)} }}'
    outputs = (tensor("Y", *dims), tensor(full[-1], *dims))
    return RegionSignature(f"random{seed}", body, tuple(inputs), outputs)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, cache: KernelCache) -> Path:
    path = tmp_path_factory.mktemp("random") / "random.so"
    signatures = [random_signature(seed) for seed in range(COUNT)]
    assert build_library(signatures, Target(), path, cache=cache).refused == ()
    return path


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_regions(seed: int, library: Path) -> None:
    signature = random_signature(seed)
    model = fused_model(signature)
    ours, theirs = session(model, library, threads=2), session(model)
    for sizes in ({"a": 1, "b": 1, "c": 1}, {"a": 5, "b": 17, "c": 2}, {"a": 61, "b": 31, "c": 7}):
        feeds = {spec.name: random_input(spec, sizes, seed) for spec in signature.inputs}
        for found, expected in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            assert found.shape == expected.shape
            # Up to 25 roundings of values below 32; steep chains magnify them a little.
            np.testing.assert_allclose(found, expected, rtol=0, atol=64 * 2**-23)
