"""Damage to models: each function changes a copy of a model, or returns bytes that are none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from onnx import AttributeProto, TensorProto, helper

Damage = Callable[[random.Random, onnx.ModelProto], "bytes | None"]
_ODD_INTS = (-1, 0, 1, 2, 7, 2**31, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63))
_ODD_NAMES = ("", "x", "y", "../x", "\x1b[31mred", "a\nb", "\0", "n" * 100_000, "é" * 50, " ")
_ODD_TYPES = (-1, 0, 1, 7, 8, 9, 10, 14, 16, 17, 22, 23, 99, 2**31 - 1)
_METADATA = (
    ("ortkit.library", "/etc/passwd"), ("ortkit.library", "a\nb"), ("ortkit.library", "m.ops.so"),
    ("ortkit.library.sha256", "no hash"),
    ("ortkit.library.sha256", "0" * 64), ("ortkit.library.data", "@@@@"),
    ("ortkit.source", "{"), ("ortkit.found", "1"), ("", ""), ("k" * 1000, "\x1b[2J"),
)  # fmt: skip


def flip_bits(random: random.Random, model: onnx.ModelProto) -> bytes:
    data = bytearray(model.SerializeToString())
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def truncate(random: random.Random, model: onnx.ModelProto) -> bytes:
    data = model.SerializeToString()
    return data[: random.randrange(len(data))]


def splice(random: random.Random, model: onnx.ModelProto) -> bytes:
    data = model.SerializeToString()
    at, other = sorted(random.randrange(len(data)) for _ in range(2))
    return data[:at] + data[other:] + data[at:other]


def drop_node(random: random.Random, model: onnx.ModelProto) -> None:
    nodes = random.choice(_node_lists(model))
    if nodes:
        del nodes[random.randrange(len(nodes))]


def duplicate_node(random: random.Random, model: onnx.ModelProto) -> None:
    nodes = random.choice(_node_lists(model))
    if nodes:
        copy = nodes.add()
        copy.CopyFrom(random.choice(nodes))
        if random.random() < 0.7:
            copy.output[:] = [f"{name}_copy" for name in copy.output]


def reorder_nodes(random: random.Random, model: onnx.ModelProto) -> None:
    nodes = random.choice(_node_lists(model))
    shuffled = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    random.shuffle(shuffled)
    del nodes[:]
    nodes.extend(shuffled)


def change_operator(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model)
    others = [each.op_type for each in _nodes(model)]
    odd = ("Relu", "Cast", "Loop", "If", "Add", "Reshape", "NoSuchOp", "Twice", "Range", "Concat")
    node.op_type = random.choice([*others, *odd])
    if random.random() < 0.2:
        node.domain = random.choice(("", "ai.onnx", "mine", "com.microsoft", "ai.onnx.ml", "x"))


def change_name(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model)
    names = [*(name for each in _nodes(model) for name in each.output), *_ODD_NAMES]
    target = random.choice((node.input, node.output))
    if target:
        target[random.randrange(len(target))] = random.choice(names)


def change_arity(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model)
    target = random.choice((node.input, node.output))
    if target and random.random() < 0.6:
        del target[random.randrange(len(target))]
    else:
        target.append(random.choice((*node.input, *node.output, "more", "")))


def drop_attribute(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model, lambda node: bool(node.attribute))
    if node.attribute:
        del node.attribute[random.randrange(len(node.attribute))]


def change_attribute(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model, lambda node: bool(node.attribute))
    if not node.attribute:
        return
    attribute = random.choice(node.attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = random.choice((*_ODD_INTS, *_ODD_TYPES))
    elif attribute.type == AttributeProto.INTS:
        values = [random.choice(_ODD_INTS) for _ in range(random.randrange(5))]
        attribute.ints[:] = random.choice((values, [*attribute.ints, 2**62]))
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = random.choice((float("nan"), float("inf"), -1.0, 0.0))
    elif attribute.type == AttributeProto.STRING:
        attribute.s = random.choice((b"", b"\xff\xfe", b"NOTSET", b"x" * 10_000, b"\0"))
    elif attribute.type == AttributeProto.TENSOR:
        _damage_tensor(random, attribute.t)


def change_attribute_type(random: random.Random, model: onnx.ModelProto) -> None:
    node = _node(random, model, lambda node: bool(node.attribute))
    if node.attribute:
        attribute = random.choice(node.attribute)
        attribute.type = random.randrange(15)
        if random.random() < 0.5:
            attribute.ref_attr_name = random.choice(("slope", "x", attribute.name))


def change_type(random: random.Random, model: onnx.ModelProto) -> None:
    info = random.choice([*model.graph.input, *model.graph.output])
    if random.random() < 0.2:
        info.ClearField("type")
    elif random.random() < 0.2:
        info.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        info.type.tensor_type.elem_type = random.choice(_ODD_TYPES)


def change_shape(random: random.Random, model: onnx.ModelProto) -> None:
    info = random.choice([*model.graph.input, *model.graph.output])
    shape = info.type.tensor_type.shape
    if random.random() < 0.2:
        info.type.tensor_type.ClearField("shape")
    elif random.random() < 0.3 or not shape.dim:
        for _ in range(random.choice((1, 9))):
            shape.dim.add(dim_param=random.choice((*_ODD_NAMES, "a/b", "9" * 5000, "((n)", "n*n")))
    else:
        shape.dim[random.randrange(len(shape.dim))].dim_value = random.choice(_ODD_INTS)


def change_interface(random: random.Random, model: onnx.ModelProto) -> None:
    infos = random.choice((model.graph.input, model.graph.output))
    if not infos:
        return
    choice = random.randrange(3)
    if choice == 0:
        del infos[random.randrange(len(infos))]
    elif choice == 1:
        infos.add().CopyFrom(random.choice(infos))
    else:
        random.choice(infos).name = random.choice(_ODD_NAMES)


def change_weight(random: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.initializer:
        _damage_tensor(random, random.choice(model.graph.initializer))


def change_weight_values(random: random.Random, model: onnx.ModelProto) -> None:
    """Give integer weights, which are sizes, axes and trip counts, other numbers."""
    kinds = (TensorProto.INT64,)
    chosen = [tensor for tensor in model.graph.initializer if tensor.data_type in kinds]
    if chosen:
        tensor = random.choice(chosen)
        count = len(onnx.numpy_helper.to_array(tensor).reshape(-1))
        values = [random.choice(_ODD_INTS) for _ in range(count)]
        tensor.ClearField("int64_data")
        tensor.raw_data = b"".join(v.to_bytes(8, "little", signed=True) for v in values)


def drop_weight(random: random.Random, model: onnx.ModelProto) -> None:
    if model.graph.initializer:
        index = random.randrange(len(model.graph.initializer))
        if random.random() < 0.5:
            model.graph.initializer.add().CopyFrom(model.graph.initializer[index])
        else:
            del model.graph.initializer[index]


def change_header(random: random.Random, model: onnx.ModelProto) -> None:
    choice = random.randrange(5)
    if choice == 0:
        model.ir_version = random.choice((-1, 0, 1, 3, 8, 12, 99, 2**62))
    elif choice == 1 and model.opset_import:
        random.choice(model.opset_import).version = random.choice((*_ODD_INTS, 11, 13, 17, 23))
    elif choice == 2:
        model.opset_import.add(domain=random.choice(("", "mine", "x")), version=13)
    elif choice == 3:
        del model.opset_import[:]
    else:
        model.graph.name = random.choice(_ODD_NAMES)


def change_metadata(random: random.Random, model: onnx.ModelProto) -> None:
    for key, value in random.sample(_METADATA, 2):
        model.metadata_props.add(key=key, value=value)


def change_function(random: random.Random, model: onnx.ModelProto) -> None:
    if not model.functions:
        helper.set_model_props(model, {"a": "b"})
        node = _node(random, model)
        function = model.functions.add(name=node.op_type, domain=random.choice(("", "mine")))
        function.input.append("a")
        function.output.append("b")
        function.node.add(op_type=random.choice(("Neg", node.op_type)), input=["a"], output=["b"])
        function.opset_import.add(domain="", version=random.choice((11, 13, 21)))
        return
    function = random.choice(model.functions)
    choice = random.randrange(6)
    if choice == 0:
        function.node.add(op_type=function.name, domain=function.domain, input=["a"], output=["r"])
    elif choice == 1:
        model.functions.add().CopyFrom(function)
    elif choice == 2:
        function.input.append("another")
    elif choice == 3:
        del function.output[:]
    elif choice == 4:
        random.choice(function.opset_import).version = random.choice(_ODD_INTS)
    else:
        function.domain = random.choice(("", "ai.onnx", "com.microsoft", "ortkit.fused"))


def change_text_format(random: random.Random, model: onnx.ModelProto) -> None:
    """Only names the mutation; the case is written as damaged text, see `cases.py`."""


DAMAGES: tuple[Damage, ...] = (
    flip_bits, flip_bits, truncate, splice, drop_node, duplicate_node, reorder_nodes,
    change_operator, change_name, change_arity, drop_attribute, change_attribute,
    change_attribute, change_attribute_type, change_type, change_shape, change_shape,
    change_interface, change_weight, change_weight_values, change_weight_values, drop_weight,
    change_header, change_metadata, change_function, change_text_format,
)  # fmt: skip


def _damage_tensor(random: random.Random, tensor: TensorProto) -> None:
    choice = random.randrange(6)
    if choice == 0:
        tensor.data_type = random.choice(_ODD_TYPES)
    elif choice == 1:
        tensor.dims[:] = [random.choice(_ODD_INTS) for _ in range(random.randrange(4))]
    elif choice == 2:
        tensor.raw_data = tensor.raw_data[: random.randrange(9)]
    elif choice == 3:
        tensor.raw_data = tensor.raw_data + b"123"
    elif choice == 4:
        tensor.name = random.choice(_ODD_NAMES)
    else:
        tensor.string_data.append(b"text")


def _node_lists(model: onnx.ModelProto) -> list[object]:
    found = [model.graph.node, *(function.node for function in model.functions)]
    return [*found, *(graph.node for graph in _inner(model.graph))]  # type: ignore[list-item]


def _inner(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield attribute.g
                yield from _inner(attribute.g)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for nodes in _node_lists(model) for node in nodes]  # type: ignore[attr-defined]


def _node(
    random: random.Random,
    model: onnx.ModelProto,
    wanted: Callable[[onnx.NodeProto], bool] = lambda node: True,
) -> onnx.NodeProto:
    nodes = _nodes(model)
    chosen = [node for node in nodes if wanted(node)] or nodes
    return random.choice(chosen) if chosen else model.graph.node.add(op_type="Relu")
