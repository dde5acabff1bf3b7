"""Nodes against the operators that ONNX defines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import onnx
from onnx.defs import OpSchema

from ortkit.errors import ModelError
from ortkit.graph.check.graph_facts import AttributeFacts, FunctionFacts, NodeFacts
from ortkit.graph.check.tensors import KNOWN_TYPES

# Operators that ONNX Runtime has in the default domain although ONNX does not, or not at that
# version (onnxruntime 1.31.1, get_all_operator_schema and get_all_opkernel_def).
RUNTIME_OWN = frozenset(
    {
        "Affine", "Crop", "DisentangledAttention_TRT", "DynamicSlice", "EfficientNMS_TRT",
        "GRUUnit", "GivenTensorFill", "ImageScaler", "LayerNormalization",
        "MeanVarianceNormalization", "MultilevelCropAndResize_TRT", "ParametricSoftplus",
        "PyramidROIAlign_TRT", "Scale", "ScaledTanh", "SimplifiedLayerNormalization",
        "ThresholdedRelu",
    }
)  # fmt: skip


#: Attributes of ONNX's operators that number a data type.
_TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type"}
)


@dataclass(frozen=True)
class _Rule:
    """What one operator of one version takes."""

    inputs: range
    outputs: range
    required: tuple[int, ...]
    """Positions of the inputs that may not be left out."""
    attributes: Mapping[str, int]
    required_attributes: frozenset[str]


class NodeRules:
    """The rules for the nodes of one graph or function; operators are looked up once each."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: Mapping[tuple[str, str, str], FunctionFacts],
    ) -> None:
        """Take the opset imports and the model's functions by (domain, name, overload)."""
        self._opsets = opsets
        self._functions = functions
        self._rules: dict[tuple[str, str], _Rule | None] = {}

    def check(self, node: NodeFacts, where: str) -> None:
        """Check operator, number of inputs and outputs, and attributes of `node`.

        Raises:
            ModelError: ONNX does not define the operator at this version, or not like this.
        """
        if self._functions:
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                self._check_import(node.domain, where)
                _check_call(node, function, where)
                return
        key = (node.domain, node.op_type)
        if key in self._rules:
            rule = self._rules[key]
        else:
            rule = self._rules[key] = self._find(node, where)
        if rule is not None:
            _check_rule(node, rule, where)

    def _check_import(self, domain: str, where: str) -> None:
        """Runtimes add the imports of domains that they know; nobody knows a model's own."""
        if domain not in self._opsets:
            raise ModelError(
                f"no opset of domain {domain!r} is imported",
                where=where,
                fix="add an opset import, or export the model again",
            )

    def _find(self, node: NodeFacts, where: str) -> _Rule | None:
        if not node.op_type:
            raise ModelError("the node has no operator", where=where, fix="export the model again")
        if node.domain:
            return None  # a library may bring it, beside functions of the same domain too
        version = self._opsets.get("")
        if version is None:
            raise ModelError(
                f"{node.op_type!r} is of the default domain, and no opset of that is imported",
                where=where,
                fix="add an opset import for the domain ''",
            )
        if onnx.defs.has(node.op_type, version, ""):
            schema = onnx.defs.get_schema(node.op_type, version, "")
            if schema.deprecated:
                raise ModelError(
                    f"{node.op_type!r} was removed in opset {schema.since_version},"
                    f" and the model imports {version}",
                    where=where,
                    fix="export the model again",
                )
            return _rule(schema)
        if node.op_type in RUNTIME_OWN:
            return None
        raise _unknown(node.op_type, version, where)


def check_opsets(opsets: Mapping[str, int], where: str) -> None:
    """Check the opset imports of a model or function.

    Raises:
        ModelError: There is none, or one is newer than the installed onnx knows.
    """
    if not opsets:
        raise ModelError(
            "there is no opset import", where=where, fix="check that the file is complete"
        )
    for domain, known in (("", onnx.defs.onnx_opset_version()), ("ai.onnx.ml", _newest_ml())):
        version = opsets.get(domain, 1)
        if 1 <= version <= known:
            continue
        name = f" of {domain}" if domain else ""
        raise ModelError(
            f"opset {version}{name} is not supported (onnx {onnx.__version__} knows 1 to {known})",
            where=where,
            fix="install a newer onnx, or export for an older opset",
        )


def _newest_ml() -> int:
    known = onnx.helper.OP_SET_ID_VERSION_MAP
    return max(version for domain, version in known if domain == "ai.onnx.ml")


def _rule(schema: OpSchema) -> _Rule:
    kinds = OpSchema.FormalParameterOption
    return _Rule(
        range(schema.min_input, schema.max_input + 1),
        range(schema.min_output, schema.max_output + 1),
        tuple(i for i, entry in enumerate(schema.inputs) if entry.option == kinds.Single),
        {name: _attribute_kind(entry.type) for name, entry in schema.attributes.items()},
        frozenset(name for name, entry in schema.attributes.items() if entry.required),
    )


def _attribute_kind(kind: OpSchema.AttrType) -> int:
    return int(onnx.AttributeProto.AttributeType.Value(str(kind).rpartition(".")[2]))


def _check_rule(node: NodeFacts, rule: _Rule, where: str) -> None:
    if len(node.inputs) not in rule.inputs:
        raise _miscounted("inputs", len(node.inputs), rule.inputs, where)
    if len(node.outputs) not in rule.outputs:
        raise _miscounted("outputs", len(node.outputs), rule.outputs, where)
    if "" in node.inputs:
        for position in rule.required:
            if position < len(node.inputs) and not node.inputs[position]:
                raise ModelError(
                    f"input {position} is left out and {node.op_type} needs it",
                    where=where,
                    fix="export the model again",
                )
    for attribute in node.attributes:
        kind = rule.attributes.get(attribute.name)
        if kind is None:
            raise ModelError(
                f"{node.op_type} has no attribute {attribute.name!r}",
                where=where,
                fix="check the opset that the model imports, or export it again",
            )
        if kind != attribute.kind:
            raise ModelError(
                f"attribute {attribute.name!r} is {_kind_name(attribute.kind)} and must be"
                f" {_kind_name(kind)}",
                where=where,
                fix="export the model again",
            )
        if attribute.name in _TYPE_ATTRIBUTES and not _is_type(attribute):
            raise ModelError(
                f"attribute {attribute.name!r} is {attribute.number}, which is no data type",
                where=where,
                fix="export the model again, or install a newer onnx",
            )
    if rule.required_attributes:
        missing = rule.required_attributes.difference(entry.name for entry in node.attributes)
        if missing:
            raise ModelError(
                f"{node.op_type} lacks attribute {min(missing)!r}",
                where=where,
                fix="check the opset that the model imports, or export it again",
            )


def _is_type(attribute: AttributeFacts) -> bool:
    """Say whether an attribute numbers a data type; 0 stands for a default where there is one."""
    if attribute.refers_to or attribute.kind != onnx.AttributeProto.INT:
        return True
    return attribute.number in KNOWN_TYPES or (attribute.number == 0 and attribute.name != "to")


def _check_call(node: NodeFacts, function: FunctionFacts, where: str) -> None:
    for what, given, declared in (
        ("inputs", node.inputs, function.body.inputs),
        ("outputs", node.outputs, function.body.outputs),
    ):
        if len(given) > len(declared):
            raise _miscounted(what, len(given), range(len(declared) + 1), where)


def _miscounted(what: str, given: int, allowed: range, where: str) -> ModelError:
    low, high = allowed.start, allowed.stop - 1
    if low == high:
        wanted = f"takes {low}"
    elif high >= 2**31 - 1:
        wanted = f"takes at least {low}"
    else:
        wanted = f"takes {low} to {high}"
    return ModelError(
        f"{given} {what if given != 1 else what[:-1]}, and the operator {wanted}",
        where=where,
        fix="check the opset that the model imports, or export it again",
    )


def _unknown(op_type: str, version: int, where: str) -> ModelError:
    since = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and not schema.domain
    ]
    if since:
        return ModelError(
            f"{op_type!r} exists since opset {min(since)} and the model imports {version}",
            where=where,
            fix="import a newer opset, or export the model again",
        )
    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    near = get_close_matches(op_type, sorted(names), n=1)
    hint = f" (there is {near[0]!r})" if near else ""
    return ModelError(
        f"ONNX has no operator {op_type!r} in the default domain{hint}",
        where=where,
        fix="put a custom operator into a domain of its own",
    )


def _kind_name(kind: int) -> str:
    if kind in onnx.AttributeProto.AttributeType.values():
        return str(onnx.AttributeProto.AttributeType.Name(kind))
    return f"type {kind}"
