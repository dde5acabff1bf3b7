"""Regions, fused nodes and reasons of models/ and one in few bits, without compiling a kernel."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir

import models
from models.catalog import BUILDERS, spellings
from ortkit.fusion.plan import compile_regions
from ortkit.fusion.regions import cost_model
from ortkit.graph.io.encode import skeleton
from ortkit.graph.io.open import open_model
from ortkit.kernels.build.library import LibraryBuild
from ortkit.optimization.options import OptimizeOptions
from ortkit.optimization.passes import lowering_of, pipeline_of, rewrite_options
from ortkit.targets.catalog import KINDS, load, traits_of
from ortkit.targets.target import Target
from scripts.baselines.listing import FOLDER, conclude, digest
from scripts.baselines.nbits_model import DTYPES, build

FILE = FOLDER / "region_keys.txt"
#: What the model of products in few bits is called.
NBITS = "nbits"
CPU_LEVEL = "x86-64-v4"
ARCHITECTURES = "sm_80,sm_90"
#: Models of the second size are built in their first spelling only.
SIZES = ("tiny", "full")
#: What a region must save; nothing where models are tiny, since there hardly one would pay.
LIMITS = ("MINIMUM_GAIN", "MINIMUM_SAVED_NS", "MINIMUM_POINTS")


@dataclass(frozen=True)
class Setting:
    """How a model is optimized."""

    target: str
    level: int
    precision: str = "fp32"

    @property
    def options(self) -> OptimizeOptions:
        """Return the options of the call."""
        return OptimizeOptions(
            target=self.target, level=self.level, precision=self.precision, cpu=CPU_LEVEL,
            arch=ARCHITECTURES, verify=False, check_load=False,
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.target} level {self.level} {self.precision}"


SETTINGS = (
    Setting("cpu", 2),
    Setting("cpu", 3),
    Setting("cuda", 2),
    Setting("cuda", 3),
    Setting("cuda", 2, "fp16"),
)


def lines_of(proto: onnx.ModelProto, setting: Setting) -> tuple[str, ...]:
    """Return what the rewrites and the regions of one model are."""
    options = setting.options
    model = open_model(proto)
    before = sum(1 for _ in model.graph.all_nodes())
    told = rewrite_options(options)
    result = pipeline_of(options).run(model, told)
    if options.precision != "fp32":
        result = lowering_of(options).run(model, told, after=result)
    is_cpu = options.target == "cpu"
    regions, _, _ = compile_regions(
        result.scopes, Path("unused"), "tvm" if is_cpu else "triton",
        Target(options.target, options.cpu if is_cpu else options.arch), options.count,
    )  # fmt: skip
    emitted = Counter(
        f"{region.emitted_as} of {region.nodes}" for region in regions if region.emitted_as
    )
    reasons = Counter(f"{region.kind}: {region.reason}" for region in regions if region.reason)
    log = result.log
    return (
        f"{before} -> {sum(1 for _ in model.graph.all_nodes())} nodes {_graph_digest(model)}",
        f"{len(log.hits)} hits {digest(*(hit.id for hit in log.hits))}",
        f"{len(log.misses)} misses {digest(*(str(asdict(miss)) for miss in log.misses))}",
        f"{len(regions)} regions {digest(*(str(asdict(region)) for region in regions))}",
        *(f"{count} x {text}" for text, count in sorted(emitted.items())),
        *(f"{count} x {text}" for text, count in sorted(reasons.items())),
    )


def main(arguments: list[str]) -> int:
    """List all models, or those named; compare with the baseline or write it."""
    parser = argparse.ArgumentParser("scripts/region_keys")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    given = parser.parse_args(arguments)
    for traits in map(traits_of, KINDS):
        for index in (*traits.families, *traits.decompositions, traits.cost_model):
            load(index)  # a module that takes over a limit does so before it is patched
    entries: dict[str, tuple[str, ...]] = {}
    with ExitStack() as stack:
        # What was measured or tuned on this machine decides nothing.
        cache = stack.enter_context(TemporaryDirectory())
        stack.enter_context(patch.dict(os.environ, {"ORTKIT_CACHE": cache}))
        stack.enter_context(patch("ortkit.fusion.plan.build_library", _not_built))
        for name, size, spelling in _variants(given.models):
            proto = models.build(name, size, spelling)
            with _without_limits(is_tiny=size == "tiny"):
                for setting in SETTINGS:
                    entries[f"{name}.{spelling}.{size}, {setting}"] = lines_of(proto, setting)
        for dtype in DTYPES if not given.models or NBITS in given.models else ():
            setting = Setting("cpu" if dtype == "float32" else "cuda", 2)
            with _without_limits(is_tiny=True):
                entries[f"{NBITS}.{dtype}, {setting}"] = lines_of(build(dtype), setting)
    is_partial = bool(given.models)
    return conclude(
        FILE, entries, is_update=given.update, is_whole=not is_partial, is_partial=is_partial
    )


@contextmanager
def _without_limits(*, is_tiny: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for limit in LIMITS if is_tiny else ():
            stack.enter_context(patch.object(cost_model, limit, -np.inf))
        yield


def _variants(names: list[str]) -> Iterator[tuple[str, str, str]]:
    for name in [item for item in names if item != NBITS] if names else BUILDERS:
        for size in SIZES:
            for spelling in spellings(name) if size == "tiny" else spellings(name)[:1]:
                yield name, size, spelling


def _not_built(*_: object, **__: object) -> LibraryBuild:
    """Stand for `build_library`: every region that is accepted has a kernel."""
    return LibraryBuild(None, (), (), 0, "", 0.0)


def _graph_digest(model: ir.Model) -> str:
    """Return the digest of a graph without its weights' values."""
    weights = (
        f"{value.name} {value.dtype} {value.shape}" for value in model.graph.initializers.values()
    )
    return digest(skeleton(model).SerializeToString(deterministic=True), *weights)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
