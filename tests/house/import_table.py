"""Which package may import which, and through which modules."""

from __future__ import annotations

#: Modules that import nothing of ortkit but each other, and that every package may import.
EVERYWHERE = frozenset(
    {"env", "errors", "parent", "private_folder", "refusal", "temporary", "version"}
)

#: Package -> the packages that it may import, in addition to itself and `EVERYWHERE`. A module
#: beside the packages is a package of its own. `x/*` is x with all packages in it, `*` is all.
MAY_IMPORT = {
    "__init__": "extend one_call optimization provider runtime",
    "__main__": "cli",
    "bisection": "graph optimization rewrite verify",
    "candidate": "fusion measure report rewrite",
    "cli": "*",
    "comparison": "graph kernels measure runtime runtime/workers verify",
    "custom_ops": "",
    "custom_ops/examples": "__init__",
    "custom_ops/examples/cpu": "custom_ops/tvm kernels",
    "custom_ops/examples/gpu": "",
    "custom_ops/triton": "kernels kernels/region kernels/triton",
    "custom_ops/tvm": "kernels kernels/region kernels/tvm",
    "doctor": "kernels provider provider/own",
    "extend": (
        "fusion graph kernels kernels/triton kernels/tvm ops passes rewrite runtime targets verify"
    ),
    "fused_source": "candidate fusion graph kernels options passes rewrite",
    "fusion": "graph kernels kernels/region ops ops/attention rewrite targets",
    "graph": "",
    "graph/batch": "graph graph/shape_rules",
    "graph/opsets": "graph graph/shape_rules",
    "graph/shape_rules": "graph",
    "kernel_stage": "fusion kernels options report rewrite targets",
    "kernels": "targets",
    "kernels/region": "kernels",
    "kernels/triton": "kernels kernels/region targets",
    "kernels/tvm": "kernels kernels/region targets",
    "load_stage": "options verify",
    "isolation": "",
    "measure": (
        "graph kernels runtime runtime/memory runtime/profiling runtime/workers targets verify"
    ),
    "one_call": "extend optimization",
    "ops": "graph rewrite",
    "ops/attention": "graph ops rewrite",
    "optimization": (
        "candidate fused_source fusion graph kernel_stage kernels load_stage measure optimized"
        " options pipelines precision report rewrite rollback runtime verify"
    ),
    "optimized": "graph kernels report",
    "option_checks": "options verify",
    "options": "graph graph/opsets kernels option_checks rewrite verify",
    "pass_info": "passes rewrite",
    "passes": "graph ops ops/attention rewrite",
    "pipelines": "kernels options passes precision rewrite",
    "precision": "graph graph/opsets isolation kernels rewrite runtime targets verify",
    "provider": "graph runtime",
    "provider/conformance": "provider provider/own runtime",
    "provider/own": (
        "fusion graph kernels measure ops passes provider rewrite runtime targets verify"
    ),
    "report": "graph measure precision rewrite verify",
    "rewrite": "graph graph/opsets",
    "rollback": "candidate verify",
    "runtime": "graph kernels",
    "runtime/memory": "graph kernels runtime runtime/profiling runtime/workers",
    "runtime/profiling": "graph kernels runtime runtime/workers",
    "runtime/workers": "graph kernels runtime",
    "targets": "",
    "trial": "graph measure optimization options report runtime runtime/profiling verify",
    "tune": (
        "fusion graph kernels kernels/region measure optimization options runtime"
        " runtime/workers targets"
    ),
    "verify": "graph graph/batch isolation kernels kernels/triton runtime",
}

#: Package in a package -> its modules that other packages may import. A package that is missing
#: here is private to the package that it lies in.
FACE = {
    "graph/batch": "cut place",
    "graph/opsets": "raising",
    "graph/shape_rules": "call elementwise",
    "kernels/region": "dtypes emitter ops reader vectormath",
    "kernels/triton": ("build choices emit expr hand interpreter launches maps parameters source"),
    "kernels/tvm": "build choices emit",
    "ops/attention": (
        "core emit facts find forms mask_emit operands projections rotary sizes trace understand"
        " understood"
    ),
    "provider/conformance": "cases conform subject verdict",
    "provider/own": "ahead building failures options",
    "runtime/memory": "arena_options library node_table nodes point point_child",
    "runtime/profiling": (
        "advice devices diff diff_match diff_models diff_saved events html html_data model_runs"
        " peaks perfetto result saved_trace trace"
    ),
    "runtime/workers": "planning turns worker",
}

#: (package, package) -> modules of the first that import the second against `MAY_IMPORT`. A test
#: fails if one of them no longer does, so that entries go and none stays in vain.
KNOWN_EXCEPTIONS = {
    ("custom_ops/triton", "custom_ops/tvm"): (
        "attention_reader conv_form fp8_form fp8_rows joined pool product_batch product_form"
        " product_norms squeeze"
    ),
    ("fusion", "report"): "conv_plan kept plan",
    ("graph", "graph/shape_rules"): "shape_facts shapes",
    ("kernels", "kernels/region"): "names",
    ("rewrite", "graph/shape_rules"): "row_probe",
    ("runtime", "__init__"): "child_process",
    ("runtime", "runtime/memory"): "cuda_activity session",
    ("runtime", "runtime/profiling"): "cuda_activity session timing",
    ("runtime", "runtime/workers"): "timing",
    ("runtime/profiling", "runtime/memory"): "recording",
    ("runtime/workers", "runtime/memory"): "child",
}
