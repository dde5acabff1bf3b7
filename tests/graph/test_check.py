"""What `check_model` and the check behind `open_model` refuse, and what they let pass."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper

from ortkit.errors import ModelError
from ortkit.graph.check.model import check_model, check_proto
from ortkit.graph.io.open import open_model
from ortkit.graph.io.text import from_text, parse_text

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def refusal(text: str) -> str:
    """Return the one line with which a model in ONNX text is refused."""
    proto = parse_text(text.encode(), ".onnxtxt", "text")
    with pytest.raises(ModelError) as caught:
        open_model(proto)
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.fix
    return line


REFUSED = {
    "undefined input": (
        "g (float[2] x) => (float[2] y) { [n] y = Add(x, weihgt) }",
        "node 'n' (Add): input 'weihgt' is defined nowhere",
    ),
    "near name": (
        "g (float[2] weight) => (float[2] y) { y = Relu(weigth) }",
        "(there is 'weight')",
    ),
    "cyclic": (
        "g (float[2] x) => (float[2] y) { [a] s = Add(x, t) [b] t = Relu(s) y = Relu(t) }",
        "the graph is cyclic: node 'a' (Add) -> node 'b' (Relu) -> node 'a' (Add)",
    ),
    "node reads itself": (
        "g (float[2] x) => (float[2] y) { [a] y = Add(x, y) }",
        "the graph is cyclic: node 'a' (Add) -> node 'a' (Add)",
    ),
    "output twice": (
        "g (float[2] x) => (float[2] y) { y = Relu(x) [b] y = Abs(x) }",
        "node 'b' (Abs): an output is called 'y', and so is an earlier value",
    ),
    "output takes an input's name": (
        "g (float[2] x) => (float[2] x) { [b] x = Abs(x) }",
        "an output is called 'x'",
    ),
    "input twice": (
        "g (float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }",
        "graph 'g': an input is called 'x'",
    ),
    "output without producer": (
        "g (float[2] x) => (float[2] z) { y = Relu(x) }",
        "graph 'g': no node makes output 'z'",
    ),
    "unknown operator": (
        "g (float[2] x) => (float[2] y) { y = Rleu(x) }",
        "ONNX has no operator 'Rleu' in the default domain (there is 'Relu')",
    ),
    "too few inputs": ("g (float[2] x) => (float[2] y) { y = Add(x) }", "takes 2"),
    "too many inputs": ("g (float[2] x) => (float[2] y) { y = Relu(x, x) }", "takes 1"),
    "too many outputs": ("g (float[2] x) => (float[2] y) { y, z = Relu(x) }", "2 outputs, and"),
    "required input left out": (
        "g (float[2] x) => (float[2] y) { y = Add( , x) }",
        "input 0 is left out and Add needs it",
    ),
    "unknown attribute": (
        "g (float[2] x) => (float[2] y) { y = Relu <axis = 1> (x) }",
        "Relu has no attribute 'axis'",
    ),
    "attribute of a wrong type": (
        "g (float[2] x) => (float[2] y) { y = Softmax <axis = 1.5> (x) }",
        "attribute 'axis' is FLOAT and must be INT",
    ),
    "attribute missing": (
        "g (float[2] x) => (double[2] y) { y = Cast(x) }",
        "Cast lacks attribute 'to'",
    ),
    "type that does not exist": (
        "g (float[2] x) => (float[2] y) { [n] y = Cast <to = 99> (x) }",
        "node 'n' (Cast): attribute 'to' is 99, which is no data type",
    ),
    "type left open": (
        "g (float[2] x) => (float[2] y) { y = Cast <to = 0> (x) }",
        "attribute 'to' is 0, which is no data type",
    ),
    "random numbers of no type": (
        "g () => (float[2] y) { y = RandomNormal <dtype = -1, shape = [2]> () }",
        "attribute 'dtype' is -1, which is no data type",
    ),
    "undefined input in a branch": (
        """g (bool c, float[2] x) => (float[2] y) {
             [pick] y = If (c) <
               then_branch = t () => (float[2] a) { [inner] a = Add(x, lost) },
               else_branch = e () => (float[2] b) { b = Relu(x) }
             > }""",
        "node 'pick' (If): node 'inner' (Add): input 'lost' is defined nowhere",
    ),
    "branch returns an outer value": (
        """g (bool c, float[2] x) => (float[2] y) {
             [pick] y = If (c) <
               then_branch = t () => (float[2] x) { a = Relu(x) },
               else_branch = e () => (float[2] b) { b = Relu(x) }
             > }""",
        "output 'x' belongs to a graph around this one",
    ),
    "circle through a branch": (
        """g (bool c, float[2] x) => (float[2] y) {
             [pick] y = If (c) <
               then_branch = t () => (float[2] a) { a = Relu(z) },
               else_branch = e () => (float[2] b) { b = Relu(x) }
             >
             [after] z = Relu(y) }""",
        "the graph is cyclic: node 'pick' (If) -> node 'after' (Relu)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_one_line_that_names_the_place(name: str) -> None:
    text, expected = REFUSED[name]
    assert expected in refusal(HEAD + text)


FUNCTIONS_HEAD = '<ir_version: 10, opset_import: ["" : 21, "my" : 1]>\n'
FUNCTION = '<domain: "my", opset_import: ["" : 21, "my" : 1]>\n'
REFUSED_FUNCTIONS = {
    "undefined name in a function": (
        "y = my.F(x)",
        "F (a) => (b) { b = Add(a, q) }",
        "function 'F': node 0 (Add): input 'q' is defined nowhere",
    ),
    "recursion": (
        "y = my.F(x)",
        "F (a) => (b) { b = my.F(a) }",
        "function 'F' of domain 'my' calls itself",
    ),
    "too many arguments": (
        "y = my.F(x, x)",
        "F (a) => (b) { b = Relu(a) }",
        "2 inputs, and the operator takes 0 to 1",
    ),
    "attribute that the function lacks": (
        "y = my.F(x)",
        "F (a) => (b) { b = Softmax <axis: int = @q> (a) }",
        "refers to 'q', which the function does not have",
    ),
}


@pytest.mark.parametrize("name", REFUSED_FUNCTIONS)
def test_refuses_bad_functions(name: str) -> None:
    body, function, expected = REFUSED_FUNCTIONS[name]
    graph = f"g (float[2] x) => (float[2] y) {{ {body} }}\n"
    assert expected in refusal(FUNCTIONS_HEAD + graph + FUNCTION + function)


def test_refuses_an_opset_that_onnx_does_not_know() -> None:
    newer = onnx.defs.onnx_opset_version() + 1
    text = HEAD.replace("21", str(newer)) + "g (float[2] x) => (float[2] y) { y = Relu(x) }"
    assert f"opset {newer} is not supported" in refusal(text)


def test_says_since_when_an_operator_exists() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[2] x) => (float[2] y) { y = Gelu(x) }'
    )
    assert "'Gelu' exists since opset 20 and the model imports 17" in refusal(text)


def test_refuses_a_removed_operator() -> None:
    graph = "g (float[2] x, float[1] s) => (float[2] y) { y = Upsample(x, s) }"
    text = HEAD.replace("21", "17") + graph
    assert "'Upsample' was removed in opset 10" in refusal(text)


ACCEPTED = {
    "custom domain": '<ir_version: 10, opset_import: ["" : 21, "acme" : 3]>\n'
    "g (float[2] x) => (float[2] y) { y = acme.Anything <odd = 1> (x, x, x) }",
    "unsorted": HEAD + "g (float[2] x) => (float[2] y) { y = Relu(t) t = Abs(x) }",
    "shadowing in a branch": HEAD
    + """g (bool c, float[2] x) => (float[2] y) {
           a = Abs(x)
           y = If (c) <
             then_branch = t () => (float[2] a) { a = Relu(x) },
             else_branch = e () => (float[2] b) { b = Relu(a) }
           > }""",
    "LayerNormalization before ONNX had it": '<ir_version: 8, opset_import: ["" : 13]>\n'
    "g (float[2,4] x, float[4] s) => (float[2,4] y) { y = LayerNormalization <axis = -1> (x, s) }",
    "initializer that is an input's default": HEAD
    + "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepts(name: str) -> None:
    model = open_model(parse_text(ACCEPTED[name].encode(), ".onnxtxt", "text"))
    check_model(model)


def test_sorts_nodes_that_are_listed_in_another_order() -> None:
    model = open_model(parse_text(ACCEPTED["unsorted"].encode(), ".onnxtxt", "text"))
    assert [node.op_type for node in model.graph] == ["Abs", "Relu"]


def model_with(tensor: TensorProto) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"], name="n")],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [tensor],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def tensor_of(data_type: int, dims: list[int], **fields: object) -> TensorProto:
    return TensorProto(name="w", data_type=data_type, dims=dims, **fields)


REFUSED_TENSORS = {
    "raw data too short": (tensor_of(1, [3], raw_data=b"\0" * 8), "8 bytes, and FLOAT [3] asks"),
    "raw data too long": (tensor_of(1, [1], raw_data=b"\0" * 8), "asks for 4"),
    "4-bit data": (tensor_of(TensorProto.INT4, [5], raw_data=b"\0" * 2), "INT4 [5] asks for 3"),
    "no data": (tensor_of(1, [2]), "holds 0 values in float_data, and FLOAT [2] asks for 2"),
    "values in the wrong field": (tensor_of(1, [1], int32_data=[1]), "belong into float_data"),
    "two kinds of data": (tensor_of(1, [1], float_data=[1], raw_data=b"0000"), "and float_data"),
    "unknown type": (tensor_of(99, [1], raw_data=b"\0"), "data type 99 does not exist"),
    "no type": (tensor_of(0, [1], raw_data=b"\0"), "data type 0 does not exist"),
    "negative size": (tensor_of(1, [-1], raw_data=b""), "negative size"),
    "huge": (tensor_of(1, [2**40, 2**40], raw_data=b""), "larger than any file"),
    "strings as bytes": (tensor_of(8, [1], raw_data=b"a"), "strings cannot be raw data"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_refuses_tensors_whose_data_does_not_fit(name: str) -> None:
    tensor, expected = REFUSED_TENSORS[name]
    for proto in (model_with(tensor), model_in_node(tensor), model_in_branch(tensor)):
        with pytest.raises(ModelError, match=r"tensor 'w'") as caught:
            open_model(proto)
        assert expected in str(caught.value)


def model_in_node(tensor: TensorProto) -> onnx.ModelProto:
    model = model_with(tensor)
    model.graph.ClearField("initializer")
    node = model.graph.node.add(op_type="Constant", output=["w"])
    node.attribute.add(name="value", type=AttributeProto.TENSOR).t.CopyFrom(tensor)
    return model


def model_in_branch(tensor: TensorProto) -> onnx.ModelProto:
    branch = model_with(tensor).graph
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "outer", [condition], list(branch.output))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


GOOD_TENSORS = {
    "4 bits": tensor_of(TensorProto.INT4, [5], raw_data=b"\0" * 3),
    "4 bits in numbers": tensor_of(TensorProto.UINT4, [3], int32_data=[0x21, 0x3]),
    "2 bits": tensor_of(TensorProto.UINT2, [5], raw_data=b"\0" * 2),
    "half in numbers": tensor_of(TensorProto.FLOAT16, [2], int32_data=[1, 2]),
    "complex": tensor_of(TensorProto.COMPLEX64, [1], float_data=[1, 2]),
    "empty": tensor_of(1, [0, 3]),
    "scalar": tensor_of(1, [], float_data=[1]),
    "strings": tensor_of(8, [2], string_data=[b"a", b"b"]),
}


@pytest.mark.parametrize("name", GOOD_TENSORS)
def test_accepts_tensors_in_every_spelling(name: str) -> None:
    assert (
        open_model(model_with(GOOD_TENSORS[name])).graph.initializers["w"].const_value is not None
    )


def test_refuses_initializers_of_one_name() -> None:
    model = model_with(tensor_of(1, [], float_data=[1]))
    model.graph.initializer.append(tensor_of(1, [], float_data=[2]))
    with pytest.raises(ModelError, match="an initializer is called 'w'"):
        open_model(model)


def test_refuses_types_that_do_not_exist() -> None:
    model = model_with(tensor_of(1, [], float_data=[1]))
    model.graph.output[0].type.tensor_type.elem_type = 77
    with pytest.raises(ModelError, match="value 'y': data type 77 does not exist"):
        open_model(model)


def test_refuses_attributes_without_type() -> None:
    model = model_in_node(tensor_of(1, [], float_data=[1]))
    model.graph.node[1].attribute[0].ClearField("type")
    with pytest.raises(ModelError, match="attribute 'value' has no type"):
        open_model(model)


def refused(proto: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as caught:
        open_model(proto)
    return str(caught.value)


def test_refuses_attributes_without_value() -> None:
    model = model_in_node(tensor_of(1, [], float_data=[1]))
    model.graph.node[1].attribute[0].ClearField("t")
    assert "attribute 'value' has no value" in refused(model)


def test_refuses_inputs_and_outputs_without_type() -> None:
    proto = parse_text(
        f"{HEAD}g (float[2] x) => (float[2] y) {{ y = Abs(x) }}".encode(), ".txt", ""
    )
    for infos, change in (
        (proto.graph.input, lambda info: info.ClearField("type")),
        (proto.graph.input, lambda info: info.type.tensor_type.ClearField("elem_type")),
        (proto.graph.output, lambda info: info.type.tensor_type.ClearField("elem_type")),
        (proto.graph.output, lambda info: info.type.optional_type.SetInParent()),
    ):
        kept = infos[0].SerializeToString()
        change(infos[0])
        assert f"value {infos[0].name!r} has no data type" in refused(proto)
        infos[0].ParseFromString(kept)
    proto.graph.output[0].ClearField("type")  # which runtimes infer
    check_model(open_model(proto))


def test_an_empty_type_of_an_output_is_none() -> None:
    """ONNX Runtime infers it as where there is no type at all, in nested branches too."""
    inner = "If(c) <then_branch = a () => (float[2] d) { d = Relu(x) }, "
    inner += "else_branch = b () => (float[2] e) { e = Neg(x) }>"
    outer = f"If(c) <then_branch = t () => (float[2] f) {{ f = {inner} }}, "
    outer += "else_branch = u () => (float[2] h) { h = Exp(x) }>"
    text = f"{HEAD}g (float[2] x, bool c) => (float[2] y) {{ y = {outer} }}"
    proto = parse_text(text.encode(), ".onnxtxt", "text")
    graphs = [proto.graph]
    for graph in graphs:
        graph.output[0].type.Clear()
        graphs += [each.g for node in graph.node for each in node.attribute]
    assert len(graphs) == 5
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    check_model(open_model(proto))


@pytest.mark.parametrize("field", ["name", "doc_string", "op_type"])
def test_refuses_what_is_no_text(field: str) -> None:
    good = parse_text(
        f"{HEAD}g (float[2] x) => (float[2] y) {{ y = Abs(x) }}".encode(), ".txt", ""
    )
    setattr(good.graph.node[0], field, "MARK")
    data = good.SerializeToString().replace(b"MARK", b"\xff\xfeRK")
    with pytest.raises(ModelError, match="is not UTF-8 text"):
        open_model(data)


def test_refuses_a_function_whose_domain_is_not_imported() -> None:
    text = FUNCTIONS_HEAD + "g (float[2] x) => (float[2] y) { y = my.F(x) }\n"
    text += FUNCTION + "F (a) => (b) { b = Relu(a) }"
    proto = parse_text(text.encode(), ".onnxtxt", "text")
    open_model(proto)
    del proto.opset_import[1]
    assert "no opset of domain 'my' is imported" in refused(proto)


def test_an_input_that_is_an_output_keeps_its_shape() -> None:
    text = HEAD + "g (float[2] x) => (float[2] y, float x) { y = Relu(x) }"
    model = open_model(parse_text(text.encode(), ".onnxtxt", "text"))
    assert model.graph.inputs[0].shape == [2]


def test_check_model_finds_what_a_pass_broke() -> None:
    model = from_text(HEAD + "g (float[2] x) => (float[2] y) { t = Abs(x) y = Relu(t) }")
    check_model(model)
    first, second = model.graph
    stale = ir.Node("", "Neg", [model.graph.inputs[0]], name="gone")
    stale.outputs[0].name = "t2"
    second.replace_input_with(0, stale.outputs[0])
    with pytest.raises(ModelError, match="'t2'"):
        check_model(model)
    second.replace_input_with(0, first.outputs[0])
    model.graph.remove(first)
    model.graph.append(first)
    check_model(model)
    first.op_type = "Absent"
    with pytest.raises(ModelError, match="no operator 'Absent'"):
        check_model(model)


def test_check_model_sees_a_stale_value_behind_a_good_name() -> None:
    model = from_text(HEAD + "g (float[2] x) => (float[2] y) { t = Abs(x) y = Relu(t) }")
    stale = ir.Node("", "Abs", [model.graph.inputs[0]], name="gone")
    stale.outputs[0].name = "t"
    model.graph[1].replace_input_with(0, stale.outputs[0])
    with pytest.raises(ModelError, match="comes from a node that is in no graph"):
        check_model(model)


def test_check_model_compares_a_constant_with_its_type() -> None:
    model = open_model(model_with(tensor_of(1, [], float_data=[1])))
    model.graph.initializers["w"].dtype = ir.DataType.INT64
    with pytest.raises(ModelError, match="is INT64 and its data FLOAT"):
        check_model(model)


def test_check_visits_each_node_a_bounded_number_of_times() -> None:
    """Linear: the work for twice the nodes is twice the work, counted in calls."""
    import sys

    def calls(count: int) -> int:
        nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
        graph = helper.make_graph(
            nodes[::-1],
            "g",
            [helper.make_tensor_value_info("v0", 1, [1])],
            [helper.make_tensor_value_info(f"v{count}", 1, [1])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
        model.ir_version = 10
        seen = 0

        def count_calls(*_: object) -> None:
            nonlocal seen
            seen += 1

        sys.setprofile(count_calls)
        try:
            check_proto(model, {}, "")
        finally:
            sys.setprofile(None)
        return seen

    assert calls(2000) < 2.2 * calls(1000)


def test_a_domain_may_have_functions_and_ops_of_a_library() -> None:
    graph = "g (float[2] x) => (float[2] y) { t = my.Twice(x)  y = my.FromLibrary(t) }\n"
    twice = "Twice (a) => (b) { b = Add(a, a) }"
    check_model(from_text(FUNCTIONS_HEAD + graph + FUNCTION + twice))


def test_names_of_megabytes_make_no_message_of_megabytes() -> None:
    name = "ab" * 500_000
    proto = parse_text(
        f"{HEAD}g (float[2] x) => (float[2] y) {{ y = Relu(x) }}".encode(), ".onnxtxt", ""
    )
    proto.graph.node[0].input[0] = name
    with pytest.raises(ModelError) as caught:
        open_model(proto)
    assert "is defined nowhere" in str(caught.value)
    assert len(str(caught.value)) < 10_000
