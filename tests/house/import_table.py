"""Which package may import which, and through which modules."""

from __future__ import annotations

#: Modules that import nothing of ortkit but each other, and that every package may import.
EVERYWHERE = frozenset(
    {
        "deferred_imports",
        "env",
        "errors",
        "parent",
        "private_folder",
        "refusal",
        "temporary",
        "text",
        "version",
    }
)

#: Package -> the packages that it may import, in addition to itself and `EVERYWHERE`. A module
#: beside the packages is a package of its own. `x/*` is x with all packages in it, `*` is all.
MAY_IMPORT = {
    "__init__": "extend/* genai optimization provider runtime",
    "__main__": "cli",
    "analysis": "graph/* operators rewrite",
    "cli": "*",
    "comparison": "graph/* isolation kernels measure operators runtime/* verify/*",
    "custom_ops": "",
    "custom_ops/examples": "__init__",
    "custom_ops/examples/gpu": "",
    "custom_ops/forms": (
        "custom_ops/tvm/tile kernels kernels/layouts kernels/region kernels/triton operators"
    ),
    "custom_ops/triton": "kernels kernels/region kernels/triton targets",
    "custom_ops/triton/attention": "custom_ops/forms kernels kernels/triton",
    "custom_ops/triton/conv": (
        "custom_ops/forms custom_ops/triton kernels kernels/layouts kernels/triton kernels/tuning"
        " operators"
    ),
    "custom_ops/triton/gemm": (
        "custom_ops/forms custom_ops/triton custom_ops/triton/conv kernels kernels/region"
        " kernels/triton kernels/tuning"
    ),
    "custom_ops/tvm": "kernels kernels/layouts kernels/region kernels/tvm targets",
    "custom_ops/tvm/attention": (
        "custom_ops/forms custom_ops/tvm/gemm custom_ops/tvm/tile kernels kernels/region"
        " kernels/tvm"
    ),
    "custom_ops/tvm/conv": (
        "custom_ops/forms custom_ops/tvm/gemm custom_ops/tvm/tile kernels kernels/layouts"
        " kernels/region kernels/tvm operators targets"
    ),
    "custom_ops/tvm/detection": "custom_ops/forms kernels",
    "custom_ops/tvm/gemm": (
        "custom_ops/forms custom_ops/tvm/tile kernels kernels/layouts kernels/region"
        " kernels/tvm targets"
    ),
    "custom_ops/tvm/tile": "custom_ops/forms kernels kernels/region kernels/tvm",
    "doctor": "isolation kernels/* provider/* targets",
    "extend": "analysis graph/* kernels/* passes rewrite runtime targets",
    "extend/body": "analysis extend/check extend/declare graph/* operators passes rewrite runtime",
    "extend/build": "extend/declare extend/triton extend/tvm kernels/* targets",
    "extend/check": (
        "extend/body extend/build extend/declare extend/triton extend/tvm isolation kernels/*"
        " runtime targets verify"
    ),
    "extend/declare": "extend/body extend/check extend/torch kernels/* operators runtime targets",
    "extend/torch": "extend/build extend/check extend/declare extend/triton kernels/* passes",
    "extend/triton": "extend/declare kernels/* targets",
    "extend/tvm": "extend/check extend/declare kernels/* targets",
    "fusion": (
        "analysis fusion/attention fusion/conv fusion/decompose fusion/gemm fusion/regions"
        " graph/* kernels/* ops/* rewrite targets"
    ),
    "fusion/attention": "fusion/regions graph/* kernels/* operators ops/* rewrite",
    "fusion/conv": (
        "analysis fusion/int8 fusion/regions graph/* kernels/* operators rewrite targets"
    ),
    "fusion/decompose": "fusion/attention fusion/gemm fusion/regions ops/* rewrite",
    "fusion/gemm": (
        "analysis fusion/conv fusion/regions graph/* kernels/* operators rewrite targets"
    ),
    "fusion/int8": "analysis fusion/regions graph/* isolation kernels/* operators rewrite targets",
    "fusion/regions": "fusion graph/* kernels/* operators rewrite targets",
    "genai": "graph/* isolation kernels optimization runtime verify verify/perturbed",
    "graph": "operators",
    "graph/analysis": "graph graph/io graph/shapes graph/symbolic operators",
    "graph/batch": "graph graph/shapes graph/shapes/rules graph/symbolic operators",
    "graph/check": "graph",
    "graph/io": "graph graph/check",
    "graph/opsets": "graph graph/check graph/shapes graph/symbolic",
    "graph/shapes": "graph graph/shapes/rules graph/symbolic operators",
    "graph/shapes/rules": "graph graph/symbolic operators",
    "graph/symbolic": "",
    "integrations": (
        "comparison graph/* kernels measure optimization runtime targets verify/inputs"
    ),
    "isolation": "",
    "kernels": "kernels/build targets",
    "kernels/build": "isolation kernels kernels/link kernels/tuning targets",
    "kernels/layouts": "kernels",
    "kernels/link": "kernels kernels/region targets",
    "kernels/region": "kernels",
    "kernels/triton": "kernels kernels/build kernels/region targets",
    "kernels/tuning": "kernels targets",
    "kernels/tvm": "kernels kernels/region targets",
    "measure": "graph/* isolation kernels/* operators runtime/* targets verify/*",
    "mlflow": "integrations",
    "mlserver": "integrations",
    "olive": "integrations",
    "operators": "",
    "ops": "analysis",
    "ops/activations": "analysis rewrite targets",
    "ops/attention": "analysis graph/* operators rewrite",
    "ops/padding": "graph/* operators ops/attention rewrite",
    "ops/rotary": "analysis graph/* operators rewrite",
    "optimization": (
        "extend/* fusion/* graph/* isolation kernels/* measure page/* passes precision rewrite"
        " runtime/* targets verify/*"
    ),
    "page": "",
    "page/graph": "graph/* page",
    "passes": "analysis graph/* operators ops/* rewrite targets",
    "precision": (
        "analysis graph/* isolation kernels/* operators rewrite runtime/* targets verify/*"
    ),
    "provider": "graph runtime",
    "provider/conformance": "isolation kernels operators provider provider/own runtime",
    "provider/own": (
        "fusion/* graph/* isolation kernels/* measure passes provider rewrite runtime targets"
        " verify/*"
    ),
    "ray_serve": "integrations",
    "rewrite": "graph/* targets",
    "runtime": "graph/* kernels operators",
    "runtime/advice": "graph/io runtime runtime/workers",
    "runtime/memory": "graph/* isolation kernels operators runtime runtime/profiling/trace",
    "runtime/profiling": (
        "graph/* kernels/* operators runtime runtime/profiling/trace runtime/workers"
    ),
    "runtime/profiling/page": "graph/io page runtime/profiling runtime/profiling/trace",
    "runtime/profiling/trace": "kernels operators",
    "runtime/timing": "runtime runtime/profiling runtime/workers",
    "runtime/workers": "isolation runtime",
    "targets": "",
    "trial": "graph/* measure optimization runtime/* verify/* targets",
    "tune": "fusion/* graph/* isolation kernels/* measure optimization runtime/* targets",
    "upgrades": "comparison graph/* isolation runtime/* verify/*",
    "verify": (
        "graph/* isolation kernels/* operators runtime targets verify/inputs verify/kernels"
        " verify/lowered verify/perturbed"
    ),
    "verify/inputs": "graph/* operators verify",
    "verify/kernels": "graph/* isolation kernels/* operators runtime targets verify verify/inputs",
    "verify/lowered": "graph graph/shapes operators targets verify verify/inputs verify/perturbed",
    "verify/perturbed": "graph/* operators runtime verify verify/inputs",
}

#: Package in a package -> its modules that other packages may import. A package that is missing
#: here is private to the package that it lies in.
FACE = {
    "extend/body": "recognize",
    "extend/build": "library",
    "extend/check": "op_check",
    "extend/declare": "find_ops kernel_options op tensor_types",
    "extend/torch": "export",
    "extend/tvm": "searched traces tuning",
    "fusion/conv": "block bodies borders chains cuda_layout finder unknown_sizes",
    "fusion/int8": "convolution_chain filters products",
    "fusion/regions": (
        "access cost_model describe duplicate members packed region report search select sizes"
    ),
    "graph/analysis": (
        "channels_last cost diff flops inspection provenance summary value_names weights"
    ),
    "graph/batch": "cut place row_order site table",
    "graph/check": "model",
    "graph/io": (
        "atomic convert data_names file_tensors header npz open origin ort_dump parts save text"
    ),
    "graph/opsets": "raising",
    "graph/shapes": "conv_window evaluate fixed infer reshape",
    "graph/shapes/rules": "call",
    "graph/symbolic": "dims text",
    "kernels/build": "cache compiler library",
    "kernels/layouts": "bf16_blocks conv_filters fp32_panels int8_panels",
    "kernels/link": "csource linker manifest named_ops",
    "kernels/region": "dtypes emitter ops reader vectormath views",
    "kernels/triton": (
        "build choices emit expr generate hand interpreter launches maps parameters source"
        " unsigned"
    ),
    "kernels/tuning": "calibration database defaults gemm_times",
    "kernels/tvm": "build choices emit",
    "ops/activations": "forms match reference",
    "ops/attention": (
        "core emit find forms mask_emit mask_values operands projections rotary sizes trace"
        " understand understood"
    ),
    "ops/padding": "attention emit pack proof sizes",
    "ops/rotary": "channels emit layout match steps",
    "page/graph": "build compared document write",
    "provider/conformance": "cases conform subject verdict",
    "provider/own": "ahead building failures",
    "runtime/advice": "advise of_source result use",
    "runtime/memory": "arena_options node_table nodes point point_child",
    "runtime/profiling": (
        "advice cuda_activity diff diff_match diff_models diff_saved model_runs peaks perfetto"
        " result saved_trace"
    ),
    "runtime/profiling/page": "data write",
    "runtime/profiling/trace": "devices events nesting read trace",
    "runtime/timing": "variants",
    "runtime/workers": "interleave planning worker",
    "verify/inputs": "batch_rows caches covering feeds given plans sizes usual_sizes",
    "verify/kernels": "check gaps report",
    "verify/perturbed": "runs",
}

#: (package, package) -> modules of the first that import the second against `MAY_IMPORT`. A test
#: fails if one of them no longer does, so that entries go and none stays in vain.
KNOWN_EXCEPTIONS = {
    ("runtime", "runtime/advice"): "session",
    ("runtime", "runtime/memory"): "arenas session",
    ("runtime", "runtime/profiling"): "session",
}
