"""The kernel library as a file: its exports, needs, bytes, and what stops its making."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import pytest
from fused_model import bias_gelu, tensor, unary

from ortkit.errors import InternalError, KernelError, MissingDependencyError, UserError
from ortkit.kernels import c_compiler
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.link import linker
from ortkit.kernels.link.manifest import ELEMENT_TYPES, MANIFEST_VERSION
from ortkit.kernels.region.bounds import MAX_RANK, MAX_SYMBOLS, MAX_TENSORS
from ortkit.kernels.signature import RegionSignature
from ortkit.targets import cpu
from ortkit.targets.target import Target
from tests.native.elf import read_library

Build = Callable[..., LibraryBuild]


def path_of(made: LibraryBuild) -> Path:
    assert made.library is not None
    return made.library.path


def test_only_register_custom_ops_is_exported(build: Build) -> None:
    found = read_library(path_of(build(bias_gelu("n", 8), unary("Tanh"))))
    assert found.exports == ("RegisterCustomOps", "ortkit_kernel_manifest")


def test_nothing_but_the_c_library_is_needed(build: Build) -> None:
    found = read_library(path_of(build(bias_gelu("n", 8), unary("Tanh"))))
    assert set(found.needs) <= {"libc.so.6", "libm.so.6"}
    assert found.search_paths == ()
    assert found.imports, "what it needs of the C library"
    standard = [ctypes.CDLL(name) for name in ("libc.so.6", "libm.so.6")]
    strange = [name for name in found.imports if not any(hasattr(c, name) for c in standard)]
    assert strange == []


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    made = []
    for name, names in (("a", ("n", "m")), ("b", ("n", "m"))):
        folder = tmp_path / name
        folder.mkdir()
        signatures = [bias_gelu(*names, 8), unary("Tanh"), bias_gelu("n", 37)]
        if name == "b":
            signatures.reverse()
        made.append(
            build_library(signatures, Target(), folder / "x.so", cache=KernelCache(folder))
        )
    first, second = (path_of(each).read_bytes() for each in made)
    assert first == second
    assert made[0].library is not None
    assert made[0].library.ops == tuple(sorted(made[0].library.ops))
    assert str(tmp_path).encode() not in first


def test_equal_regions_are_compiled_once_and_equal_ops_linked_once(build: Build) -> None:
    made = build(bias_gelu("n", 8), bias_gelu("m", 8), bias_gelu("n", 8, name="other"))
    assert made.library is not None
    assert len(made.kernels) == 3
    assert len({kernel.artifact for kernel in made.kernels}) == 1
    key = bias_gelu("n", 8).key
    assert made.library.ops == (f"bias_gelu_{key}", f"other_{key}")


def test_names_from_models_cannot_break_the_manifest(build: Build) -> None:
    name = 'a"; \\ \n }; ??/ é %s'
    body = '<opset_import: ["" : 20]> f (X) => (Y) { Y = Exp (X) }'
    signature = RegionSignature("odd", body, (tensor(name, name),), (tensor("Y", name),))
    path = path_of(build(signature))
    ort.SessionOptions().register_custom_ops_library(str(path))
    assert name.encode() in path.read_bytes()


REFUSED = {
    "MatMul": ("Y = MatMul (X, B)", "operator MatMul"),
    "custom": ("Y = com.example.Add (X, B)", "operator com.example::Add"),
    "attribute": ("S = Add (X, B)  Y = Gelu <other: int = 1> (S)", "Gelu with attribute 'other'"),
    "vector": (
        "C = Constant <value = float[2] {1.0, 2.0}> ()  Y = Add (X, C)",
        "a constant of type float32 and shape [2]",
    ),
    "types": (
        "I = Cast <to: int = 7> (X)  Y = Add (I, B)",
        "Add with operands of type int64, float32",
    ),
    "float8": (
        "I = Cast <to: int = 17> (X)  Y = Cast <to: int = 1> (I)",
        "conversion to element type 17",
    ),
    "constant": (
        "Y = Constant <value_float: float = 1.0> ()",
        "output 'Y' is float32[], not float32[n,8]",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_is_not_pointwise_is_refused_with_the_reason(case: str, build: Build) -> None:
    nodes, reason = REFUSED[case]
    if case == "float16":
        nodes = "I = Cast <to: int = 10> (X)  J = Cast <to: int = 1> (I)  Y = Add (J, B)"
    body = f'<opset_import: ["" : 20, "com.example" : 1]> f (X, B) => (Y) {{ {nodes} }}'
    inputs = (tensor("X", "n", 8), tensor("B", 8))
    signature = RegionSignature("refused", body, inputs, (tensor("Y", "n", 8),))
    made = build(signature)
    assert (made.library, made.kernels) == (None, ())
    ((refused, why),) = made.refused
    assert refused is signature
    assert reason in why
    verdict = refusal(signature, Target())
    assert verdict is not None
    assert verdict.reason == why


def test_types_of_inputs_that_are_not_supported_are_refused() -> None:
    for dtype in ("string", "complex64"):
        body = '<opset_import: ["" : 20]> f (X) => (Y) { Y = Neg (X) }'
        signature = RegionSignature(
            "r", body, (tensor("X", "n", dtype=dtype),), (tensor("Y", "n", dtype=dtype),)
        )
        verdict = refusal(signature, Target())
        assert verdict is not None
        assert f"input 'X' of type {dtype}" in verdict.reason


def test_a_wrong_output_in_the_signature_is_refused() -> None:
    body = '<opset_import: ["" : 20]> f (X, B) => (Y) { Y = Exp (B) }'
    inputs = (tensor("X", "n", 8), tensor("B", 8))
    verdict = refusal(RegionSignature("r", body, inputs, (tensor("Y", "n", 8),)), Target())
    assert verdict is not None
    assert "output 'Y' is float32[8], not float32[n,8]" in verdict.reason


def test_the_rest_is_built_when_something_is_refused(build: Build) -> None:
    bad = RegionSignature(
        "bad", '<opset_import: ["" : 20]> f (X) => (Y) { Y = Det (X) }',
        (tensor("X", "n"),), (tensor("Y", "n"),),
    )  # fmt: skip
    made = build(bad, unary("Exp"))
    assert made.library is not None
    assert made.library.ops == (unary("Exp").op_type,)
    assert [signature for signature, _ in made.refused] == [bad]


def test_a_toolchain_that_fails_says_where(tmp_path: Path) -> None:
    from ortkit.kernels.tvm.backend import TvmBackend

    with pytest.raises(KernelError, match=r"missing/.*TVM failed on a kernel"):
        TvmBackend().compile(unary("Exp"), Target().resolved(), tmp_path / "missing")


# ---- what is missing or cannot be written
def test_no_c_compiler(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(c_compiler, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match="no C compiler to link kernels with; install gcc"
    ):
        linker.find_linker()


def test_cc_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    with pytest.raises(
        MissingDependencyError, match="CC names 'no-such-compiler', which is not there"
    ):
        linker.find_linker()


def test_a_compiler_that_fails(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "cc"
    fake.write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CC", str(fake))
    with pytest.raises(KernelError, match="failed to link the kernel library: no space left"):
        build(bias_gelu("n", 8))
    assert not (tmp_path / "model.opt.ops.so").exists()


def test_ortkit_that_was_never_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="is not installed; run `pip install"):
        linker.find_shim()


def test_a_shim_of_other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linker, "MANIFEST_VERSION", MANIFEST_VERSION + 1)
    problem = f"its manifest has version {MANIFEST_VERSION}, not {MANIFEST_VERSION + 1}"
    with pytest.raises(MissingDependencyError, match=f"{problem}.*pip install"):
        linker.find_shim()


def test_a_folder_that_is_not_there(build: Build) -> None:
    with pytest.raises(
        UserError, match="cannot write the kernel library: No such file or directory"
    ):
        build(bias_gelu("n", 8), name="missing/model.opt.ops.so")


def test_an_unknown_backend_and_an_unknown_level(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no kernel backend is called 'tvn'; use one of tvm"):
        build_library([], Target(), tmp_path / "x.so", backend="tvn")
    with pytest.raises(UserError, match="processor level 'pentium'; use one of native, x86-64"):
        build_library([], Target("cpu", "pentium"), tmp_path / "x.so")
    foreign = "aarch64" if cpu.machine() == "x86-64" else "x86-64-v3"
    with pytest.raises(
        UserError, match=f"kernels for {foreign} cannot be linked on {cpu.machine()}"
    ):
        build_library([], Target("cpu", foreign), tmp_path / "x.so")


# ---- what the processor lacks
@pytest.mark.parametrize(
    ("stated", "named"),
    [
        (cpu.LEVELS["aarch64" if cpu.machine() == "x86-64" else "x86-64"], r"\w[\w-]*"),
        (cpu.LEVELS["x86-64-v4-amx"] + 1, "unknown"),  # a level that is defined after this shim
    ],
)
def test_a_library_for_another_processor_is_refused_when_loaded(
    stated: int, named: str, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = cpu.native_level()
    monkeypatch.setitem(cpu.LEVELS, level, stated)
    path = path_of(build(bias_gelu("n", 8)))
    options = ort.SessionOptions()
    with pytest.raises(Exception, match="these kernels need a processor of level") as error:
        options.register_custom_ops_library(str(path))
    (line,) = str(error.value).splitlines()
    assert re.search(f"level {named}, and this one is {level}; build them for its level", line)


@pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed")
def test_no_instruction_is_above_the_level(tmp_path: Path, cache: KernelCache) -> None:
    """Whatever machine this is: v4 is built on v3 as v3 is on v4."""
    widest = {}
    for level in ("x86-64", "x86-64-v3", "x86-64-v4"):
        made = build_library(
            [bias_gelu("n", 768)], Target("cpu", level), tmp_path / f"{level}.so", cache=cache
        )
        done = subprocess.run(
            ["objdump", "-d", str(path_of(made))], capture_output=True, text=True, check=True
        )
        widest[level] = max(re.findall(r"%([xyz])mm\d", done.stdout))
        assert level == "x86-64-v4" or not re.search(r"%k\d", done.stdout)
    assert widest == {"x86-64": "x", "x86-64-v3": "y", "x86-64-v4": "z"}


def test_a_kernel_for_another_level_is_a_bug(tmp_path: Path, cache: KernelCache) -> None:
    level = cpu.machine()
    made = build_library([unary("Exp")], Target("cpu", level), tmp_path / "x.so", cache=cache)
    strange = replace(made.kernels[0], target=Target("cpu", "x86-64-v9"))
    with pytest.raises(InternalError, match=f"a kernel for x86-64-v9 in a library for {level}"):
        linker.link_library([strange], [unary("Exp")], tmp_path / "y.so", Target("cpu", level))
    assert not (tmp_path / "y.so").exists()


def test_every_level_up_to_the_native_one_loads(
    build: Build, tmp_path: Path, cache: KernelCache
) -> None:
    levels = [level for level in cpu.LEVELS if level.startswith(cpu.machine())]
    native = levels.index(cpu.native_level())
    for index, level in enumerate(levels):
        target = Target("cpu", level)
        made = build_library([unary("Exp")], target, tmp_path / f"{index}.so", cache=cache)
        options = ort.SessionOptions()
        if index <= native:
            options.register_custom_ops_library(str(path_of(made)))
            continue
        with pytest.raises(Exception, match=f"level {level}, and this one is"):
            options.register_custom_ops_library(str(path_of(made)))


def test_python_and_the_header_state_the_same_bounds() -> None:
    _, header = linker.find_shim()
    stated = dict(re.findall(r"#define ORTKIT_(\w+) (\d+)", header.read_text()))
    assert stated["MANIFEST_VERSION"] == str(MANIFEST_VERSION)
    assert (stated["MAX_TENSORS"], stated["MAX_SYMBOLS"]) == (str(MAX_TENSORS), str(MAX_SYMBOLS))
    assert stated["MAX_RANK"] == str(MAX_RANK)
    levels = dict(re.findall(r"ORTKIT_CPU_(\w+) = (\d+)", header.read_text()))
    assert {
        k.lower().replace("x86_64", "x86-64").replace("_", "-"): int(v) for k, v in levels.items()
    } == cpu.LEVELS


def test_numbers_of_element_types_are_those_of_onnx() -> None:
    found = {ir.DataType(number).numpy().name: number for number in ELEMENT_TYPES.values()}
    assert found == ELEMENT_TYPES


def test_an_older_installation_lacks_headers_of_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        linker, "find_shim", lambda: (tmp_path / "shim.a", tmp_path / "manifest.h")
    )

    with pytest.raises(MissingDependencyError, match=r"it lacks program\.h"):
        linker.program_headers()
