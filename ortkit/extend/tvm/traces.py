"""Schedules that meta-schedule found for known sizes: as a line of text, and applied."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

# tvm has no types that mypy could follow.
Expr: TypeAlias = Any

#: What such texts begin with, and the backend that their records are kept under.
NAME = "meta-schedule"
_SIZES = re.compile(r"\w+=[1-9]\d*(,\w+=[1-9]\d*)*|-")
#: A trace of a few operators takes 2 to 4 KB.
_MOST_BYTES = 1 << 20
_FUNCTION = "main"
#: Steps that order loops and leave what is computed as it is. Others, and other annotations, may
#: do anything: `pragma_import_llvm` brings code of its own, with what runs when it is loaded.
_STEPS = frozenset(
    {"AddUnitLoop", "Annotate", "Blockize", "CacheIndex", "CacheRead", "CacheWrite", "ComputeAt",
     "ComputeInline", "DecomposePadding", "DecomposeReduction", "EnterPostproc", "Fuse",
     "GetChildBlocks", "GetConsumers", "GetLoops", "GetOutputBlocks", "GetProducers", "GetSBlock",
     "LoopPartition", "Merge", "PadEinsum", "Parallel", "RFactor", "Reorder", "ReverseComputeAt",
     "ReverseComputeInline", "SampleCategorical", "SampleComputeLocation", "SamplePartitionedTile",
     "SamplePerfectTile", "Split", "Unannotate", "Unroll", "Vectorize"}
)  # fmt: skip
_ANNOTATIONS = re.compile(r"meta_schedule\.\w+|pragma_auto_unroll_max_step|pragma_unroll_explicit")


@dataclass(frozen=True)
class TracedSchedule:
    """One schedule of a function whose sizes are known.

    Args:
        sizes: The named sizes that it is for; of the size that work is split along, as many as
            are computed at once.
        trace: The steps and decisions, as `tvm.s_tir.schedule.Trace.as_json` has them.
    """

    sizes: Mapping[str, int]
    trace: Any = field(hash=False)

    @property
    def name(self) -> str:
        """What to call it: `meta-schedule n=512 0a1b2c3d`."""
        return name_of(str(self))

    def __str__(self) -> str:
        """Return what `read_traced` reads: equal schedules have equal texts."""
        steps = json.dumps(self.trace, separators=(",", ":"))
        digest = hashlib.sha256(steps.encode()).hexdigest()[:8]
        packed = base64.b64encode(zlib.compress(steps.encode(), 9)).decode()
        sizes = ",".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{NAME} {sizes or '-'} {digest} {packed}"

    def applied(self, function: Expr) -> Expr:
        """Return a function of these sizes with its loops in this order.

        Raises what TVM does where the steps cannot be taken; those that can leave what is computed
        as it is.
        """
        from tvm.s_tir.schedule import Trace

        module = module_of(function)
        made = schedule_of(module)
        Trace.apply_json_to_schedule(self.trace, made)
        return made.mod[_FUNCTION]


def module_of(function: Expr) -> Expr:
    """Return a module of one function, which is called as meta-schedule wants it to be."""
    import tvm

    return tvm.IRModule({_FUNCTION: function.with_attr("global_symbol", _FUNCTION)})


def schedule_of(module: Expr, seed: int | None = None) -> Expr:
    """Return a `tvm.s_tir.Schedule` of a module, which must be kept while it is needed.

    A schedule changes a module that nobody else holds, and with it what others share.
    """
    from tvm import s_tir

    return s_tir.Schedule(module, seed=seed, error_render_level="fast")


def name_of(text: str) -> str:
    """Return choices as people read them: without the steps of a schedule."""
    return text.rpartition(" ")[0] if text.startswith(f"{NAME} ") else text


def read_traced(text: str) -> TracedSchedule | None:
    """Read what `str` of a schedule returns; None if it is no such text."""
    parts = text.split(" ")
    if len(parts) != 4 or parts[0] != NAME or not _SIZES.fullmatch(parts[1]):
        return None
    try:
        unpacking = zlib.decompressobj()
        steps = unpacking.decompress(base64.b64decode(parts[3], validate=True), _MOST_BYTES)
        trace = json.loads(steps)
    except (binascii.Error, zlib.error, ValueError, RecursionError):
        return None
    if not _orders_loops(trace):
        return None
    pairs = (part.split("=") for part in parts[1].split(",") if part != "-")
    found = TracedSchedule({name: int(size) for name, size in pairs}, trace)
    return found if str(found) == text else None


def _orders_loops(trace: Any) -> bool:
    """Say whether a trace has steps that only order loops."""
    try:
        steps, _ = trace
        return all(
            kind in _STEPS
            and (kind != "Annotate" or _ANNOTATIONS.fullmatch(attributes[0]) is not None)
            for kind, _, attributes, _ in steps
        )
    except (TypeError, ValueError, IndexError):
        return False


def plain(value: Any) -> Any:
    """Return what `Trace.as_json` does with the numbers that it leaves as expressions."""
    from tvm import tirx

    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return value.value
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value
