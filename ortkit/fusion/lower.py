"""Putting a region back as one node with its body as the model-local function."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.regions import PASS, FusedRegion
from ortkit.kernels.signature import DOMAIN, RegionSignature
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import describe

#: Model-local functions exist from this IR version on.
FUNCTIONS_SINCE_IR = 8


def lower_region(scope: Scope, region: FusedRegion, signature: RegionSignature) -> bool:
    """Replace the region's nodes by one fused node. Returns False if that was denied."""
    last = region.outputs[0]
    if not scope.log.claim(PASS, region.kind, last.name or "", describe(region.anchor)):
        return False
    model = scope.model
    identifier = (DOMAIN, signature.op_type, "")
    if identifier not in model.functions:
        model.functions[identifier] = _function(scope, signature)
    scope.import_domain(DOMAIN, 1)
    model.graph.opset_imports.setdefault(DOMAIN, 1)
    scope.raise_ir_version(FUNCTIONS_SINCE_IR)
    made = scope.insert(
        region.anchor,
        signature.op_type,
        region.inputs,
        domain=DOMAIN,
        outputs=len(region.outputs),
        name=f"{last.name}/fused",
    )
    for old, new in zip(region.outputs, made, strict=True):
        scope.replace(old, new)
    return True


def _function(scope: Scope, signature: RegionSignature) -> ir.Function:
    """Return the body under the fused node's name, importing the model's versions."""
    proto = signature.function()
    proto.domain, proto.name = DOMAIN, signature.op_type
    function = ir.serde.deserialize_function(proto)
    for domain in function.opset_imports:
        function.opset_imports[domain] = scope.opset(domain) or 1
    return function
