"""`ortkit ops`: ops that are defined in Python: which there are, whether they are right, built."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import check_written
from ortkit.targets.catalog import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortkit.extend.build.library import OpsBuild
    from ortkit.extend.check.op_check import OpCheck
    from ortkit.extend.declare.kernel_options import DeclaredKernel
    from ortkit.extend.declare.op import CustomOp

SCHEMA = "ortkit.ops/1"
_ACTIONS = {
    "list": "list the ops that are defined in Python",
    "show": "describe one op",
    "test": "compare an op's reference, body and kernels on awkward inputs",
    "build": "compile ops into a library that any ONNX Runtime loads",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`, `show`, `test` and `build`."""
    what = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, summary in _ACTIONS.items():
        sub = what.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(parser=sub)
        if name != "list":
            count: str | None = {"show": None, "test": "*", "build": "+"}[name]
            extra = {"test": " (default: all)"}.get(name, "")
            sub.add_argument("names" if count else "name", metavar="NAME", nargs=count,
                help=f"domain::Name of an op, or Name{extra}")  # fmt: skip
        sub.add_argument("--from", dest="sources", action="append", default=[], metavar="SOURCE",
            help="a Python file or module that declares ops; may be repeated")  # fmt: skip
        if name in ("test", "build"):
            sub.add_argument("--dtype", dest="dtypes", action="append", metavar="DTYPE",
                help="an element type to take for Float, Int or UInt; may be repeated "
                "(default: all)")  # fmt: skip
        if name == "test":
            sub.add_argument("--seed", type=int, default=0, metavar="N",
                help="of the generated values (default: 0)")  # fmt: skip
        if name == "build":
            sub.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.so",
                help="the library")  # fmt: skip
            sub.add_argument("--cpu", default="native", metavar="LEVEL",
                help="CPU it is for: native (default), x86-64-v3, x86-64-v4, ...")  # fmt: skip
            sub.add_argument("--target", choices=KINDS, default="cpu",
                help="cuda: with kernels for GPUs too (default: cpu)")  # fmt: skip
            sub.add_argument("--arch", metavar="LIST",
                help="GPUs that code is made for, such as sm_80,sm_90")  # fmt: skip
        sub.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked of ops."""
    from ortkit.extend.declare.find_ops import choose_ops, find_ops

    names = [arguments.name] if arguments.what == "show" else getattr(arguments, "names", [])
    ops = choose_ops(find_ops(arguments.sources), names)
    if arguments.what == "test":
        return _test(arguments, ops)
    if arguments.what == "build":
        return _build(arguments, ops)
    if arguments.json:
        show.document(_document(ops))
    elif arguments.what == "show":
        _show(ops[0])
    else:
        rows = [(op.id, op.version, _signature(op), _has(op)) for op in ops]
        if rows:
            show.table("", ("op", "version", "signature", "has"), rows)
        show.line(_count(len(ops), "op"))
    return 0


def _test(arguments: argparse.Namespace, ops: Sequence[CustomOp]) -> int:
    from ortkit.errors import UserError
    from ortkit.extend.check.op_check import check_op

    if not ops:
        raise UserError("there are no ops", fix="name the file that declares them with --from")
    _check_dtypes(arguments.dtypes)
    checks = {}
    with show.progress(quiet=arguments.quiet or arguments.json) as stages:
        for op in ops:
            stages(f"test {op.id}")
            checks[op.id] = check_op(op, dtypes=arguments.dtypes, seed=arguments.seed)
    if arguments.json:
        show.document(_document(ops, checks))
    else:
        for check in checks.values():
            for fault in check.faults:
                show.line(str(fault))
            for note in check.notes:
                show.line(f"{check.op}: note: {note}")
            verdict = "wrong" if check.faults else "right"
            show.line(
                f"{check.op}: {verdict}: {check.cases} cases, body compared in {check.bodies}, "
                f"kernels in {check.kernels}"
            )
    return int(any(check.faults for check in checks.values()))


def _build(arguments: argparse.Namespace, ops: Sequence[CustomOp]) -> int:
    from ortkit.errors import UserError
    from ortkit.extend.build.library import build_ops
    from ortkit.targets.catalog import traits_of
    from ortkit.targets.target import Target

    _check_dtypes(arguments.dtypes)
    check_written({"--output": arguments.output}, map(Path, arguments.sources))
    traits = traits_of(arguments.target)
    if arguments.arch is not None and traits.level_option != "arch":
        raise UserError("--arch needs --target cuda")
    cuda = None if traits.is_host else Target(arguments.target, arguments.arch or "native")
    with show.progress(quiet=arguments.quiet or arguments.json) as stages:
        stages("compile")
        build = build_ops(
            ops, arguments.output, Target("cpu", arguments.cpu), cuda=cuda,
            dtypes=arguments.dtypes, count=stages.count,
        )  # fmt: skip
    if build.library is None:
        if not build.refused:
            raise UserError("nothing can be compiled for these element types", where="--dtype")
        op, form, reason = build.refused[0]
        raise UserError(f"nothing can be compiled: {form}: {reason}", where=op)
    if arguments.json:
        show.document(_document(ops, build=build))
        return 0
    for op, form, reason in build.refused:
        show.line(f"{op}: no kernel for {form}: {reason}")
    for op, form, note in build.notes:
        show.line(f"{op}: note: {form}: {note}")
    size = show.bytes_text(arguments.output.stat().st_size)
    kernels = _count(len(build.built), "kernel")
    show.line(
        f"{arguments.output}: {', '.join(build.library.ops)}; {kernels}, "
        f"{build.compiled} of them new, {size}"
    )
    return 0


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _check_dtypes(dtypes: Sequence[str] | None) -> None:
    from ortkit.errors import UserError
    from ortkit.extend.declare.tensor_types import Float, Int, UInt

    known = (*Float.dtypes, *Int.dtypes, *UInt.dtypes)
    for dtype in dtypes or ():
        if dtype not in known:
            raise UserError(
                f"{dtype!r} is no element type", where="--dtype", fix=f"use {', '.join(known)}"
            )


def _signature(op: CustomOp) -> str:
    schema = op.schema
    inputs = [
        f"{'*' if op_input.is_variadic else ''}{op_input.name}: {op_input.type}"
        f"{' | None' if op_input.type.is_optional else ''}"
        for op_input in schema.inputs
    ]
    inputs += [
        attribute.name if attribute.default is None else f"{attribute.name} = {attribute.default}"
        for attribute in schema.attributes.values()
    ]
    outputs = [f"{name}: {kind}" for name, kind in schema.outputs.items()]
    return f"({', '.join(inputs)}) -> {', '.join(outputs)}"


def _has(op: CustomOp) -> str:
    found = ["reference", *(["body"] if op.bodies else [])]
    found += dict.fromkeys(f"{kernel.backend} kernels" for kernel in op.kernels)
    return ", ".join([*found, *(["backward"] if op.gradient else [])])


def _for(kernel: DeclaredKernel) -> str:
    """Say what nodes a kernel is for; empty for all."""
    options = kernel.options
    parts = [f"for {', '.join(options.dtypes)}"] if options.dtypes else []
    parts += [f"without {', '.join(sorted(options.without))}"] if options.without else []
    parts += [f"where {options.when}"] if options.when else []
    return f": {' '.join(parts)}" if parts else ""


def _show(op: CustomOp) -> None:
    import onnx.printer

    show.pairs([
        ("op", op.id),
        ("version", str(op.version)),
        ("signature", _signature(op)),
        ("types", "; ".join(f"{k}: {', '.join(all_)}" for k, all_ in op.schema.kinds.items())),
        ("has", _has(op)),
        ("from", op.place),
    ])  # fmt: skip
    if op.__doc__:
        show.lines(f"\n{op.__doc__.strip()}")
    for kernel in op.kernels:
        show.lines(f"\nkernel {kernel.name} ({kernel.backend}, {kernel.target}){_for(kernel)}")
    for absent, body in op.bodies.items():
        without = f" without {', '.join(sorted(absent))}" if absent else ""
        show.lines(f"\nbody{without}\n{onnx.printer.to_text(body)}")


def _document(
    ops: Sequence[CustomOp],
    checks: Mapping[str, OpCheck] | None = None,
    build: OpsBuild | None = None,
) -> dict[str, object]:
    library = None if build is None else build.library
    return {
        "schema": SCHEMA,
        "ops": [_op_document(op, (checks or {}).get(op.id), build) for op in ops],
        "library": None if library is None else str(library.path),
        "sha256": None if library is None else library.sha256,
    }


def _op_document(op: CustomOp, check: OpCheck | None, build: OpsBuild | None) -> object:
    schema = op.schema
    return {
        "op": op.id,
        "version": op.version,
        "signature": _signature(op),
        "types": {kind: list(dtypes) for kind, dtypes in schema.kinds.items()},
        "has_body": bool(op.bodies),
        "has_backward": op.gradient is not None,
        "kernels": [
            {
                "name": kernel.name,
                "backend": kernel.backend,
                "target": kernel.target,
                "dtypes": list(kernel.options.dtypes),
                "without": sorted(kernel.options.without),
                "when": kernel.options.when,
            }
            for kernel in op.kernels
        ],
        "place": op.place,
        "check": None if check is None else {
            "cases": check.cases,
            "bodies": check.bodies,
            "kernels": check.kernels,
            "faults": [
                {"what": fault.what, "case": fault.case, "problem": fault.problem}
                for fault in check.faults
            ],
            "notes": list(check.notes),
        },
        "built": [] if build is None else [f.text for f in build.built if f.op is op],
        "refused": [] if build is None else [
            {"form": form, "reason": reason} for name, form, reason in build.refused
            if name == op.id
        ],
        "notes": [] if build is None else [
            {"form": form, "note": note} for name, form, note in build.notes if name == op.id
        ],
    }  # fmt: skip
