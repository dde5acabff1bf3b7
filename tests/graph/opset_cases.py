"""Small models of old opsets, and what ONNX Runtime makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

ort = pytest.importorskip("onnxruntime")

Case = tuple[int, str, str, str, str]

#: Opset, inputs, outputs, initializers, nodes; a size with a name is fed as 3.
CASES: dict[str, Case] = {
    # Attributes that became inputs.
    "squeeze": (11, "float[2, 1, 3] x", "y", "", "y = Squeeze <axes=[1]> (x)"),
    "squeeze all": (11, "float[2, 1, 3] x", "y", "", "y = Squeeze (x)"),
    "squeeze negative": (11, "float[2, 1, 3, 1] x", "y", "", "y = Squeeze <axes=[-1]> (x)"),
    "unsqueeze": (7, "float[2, 3] x", "y", "", "y = Unsqueeze <axes=[0, 2]> (x)"),
    "slice": (7, "float[5, 6] x", "y", "",
              "y = Slice <starts=[1, -3], ends=[4, 9999]> (x)"),
    "slice axes": (9, "float[5, 6] x", "y", "",
                   "y = Slice <axes=[1], starts=[-4], ends=[-1]> (x)"),
    "top k": (9, "float[3, 7] x", "y, i", "", "y, i = TopK <k=3, axis=1> (x)"),
    "pad": (7, "float[2, 3] x", "y", "", "y = Pad <pads=[1, 0, 0, 2], value=1.5> (x)"),
    "pad zero": (10, "float[2, 3] x", "y", "", "y = Pad <pads=[1, 0, 0, 2]> (x)"),
    "pad reflect": (10, "float[2, 4] x", "y", "",
                    "y = Pad <pads=[0, 2, 0, 1], mode='reflect'> (x)"),
    "pad edge, double": (10, "double[2, 4] x", "y", "",
                         "y = Pad <pads=[0, 2, 0, 1], mode='edge', value=2.0> (x)"),
    "clip": (7, "float[2, 30] x", "y", "", "y = Clip <min=-0.5, max=0.25> (x)"),
    "clip one side": (9, "float[2, 30] x", "y", "", "y = Clip <min=0.0> (x)"),
    "clip nothing": (10, "float[2, 30] x", "y", "", "y = Clip (x)"),
    "split": (11, "float[6, 4] x", "a, b", "", "a, b = Split <axis=0, split=[2, 4]> (x)"),
    "split evenly": (11, "float[6, 4] x", "a, b, c", "", "a, b, c = Split <axis=0> (x)"),
    "split of 13": (13, "float[6, 4] x", "a, b, c", "", "a, b, c = Split <axis=0> (x)"),
    "split by input": (13, "float[6, 4] x", "a, b", "int64[2] s = {1, 5}",
                       "a, b = Split <axis=0> (x, s)"),
    "dft": (17, "float[1, 8, 4, 1] x", "y", "", "y = DFT (x)"),
    "dft axis": (17, "float[1, 8, 4, 1] x", "y", "", "y = DFT <axis=2, onesided=1> (x)"),
    "dft inverse": (17, "float[1, 8, 4, 2] x", "y", "", "y = DFT <axis=-2, inverse=1> (x)"),
    "dft length": (17, "float[1, 8, 4, 1] x", "y", "int64 n = {5}", "y = DFT <axis=1> (x, n)"),
    **{
        f"{op} {words or 'all'} {opset}": (
            opset, "float[2, 3, 4] x", "y", "", f"y = {op} {words} (x)")
        for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                   "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")
        for opset, words in ((7, ""), (9, "<axes=[1], keepdims=0>"), (11, "<axes=[-1, 0]>"),
                             (13, "" if op == "ReduceSum" else "<axes=[0, 2]>"))
    },
    # Meanings that changed.
    **{
        f"{op} {words or 'default'} of {shape}": (
            opset, f"float[{shape}] x", "y", "", f"y = {op} {words} (x)")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opset, words, shape in (
            (7, "", "3, 4"), (7, "", "2, 3, 4"), (11, "<axis=-1>", "2, 3, 4"),
            (11, "<axis=-2>", "2, 3, 4"), (12, "<axis=0>", "2, 3"), (12, "<axis=2>", "2, 3, 4"),
            (9, "<axis=2>", "2, 0, 3, 4"), (11, "<axis=-2>", "n, 3, 4"))
    },
    "upsample": (7, "float[1, 2, 3, 4] x", "y", "",
                 "y = Upsample <scales=[1.0, 1.0, 2.0, 2.6]> (x)"),
    "upsample linear": (7, "float[1, 2, 3, 4] x", "y", "",
                        "y = Upsample <mode='linear', scales=[1.0, 1.0, 2.0, 3.0]> (x)"),
    "upsample 9": (9, "float[1, 2, 3, 4] x", "y", "float[4] s = {1, 1, 2.5, 2}",
                   "y = Upsample (x, s)"),
    "upsample linear, computed": (9, "float[1, 2, 3, 4] x, float[4] s", "y", "",
                                  "y = Upsample <mode='linear'> (x, s)"),
    "resize": (10, "float[1, 2, 3, 4] x", "y", "float[4] s = {1, 1, 2, 1.5}", "y = Resize (x, s)"),
    "resize down": (10, "float[1, 2, 5, 7] x", "y", "float[4] s = {1, 1, 0.6, 0.7}",
                    "y = Resize (x, s)"),
    "resize linear": (10, "float[1, 2, 5, 7] x", "y", "float[4] s = {1, 1, 0.6, 2.3}",
                      "y = Resize <mode='linear'> (x, s)"),
    "resize sizes": (11, "float[1, 2, 5, 7] x", "y",
                     "float[0] e = {} int64[4] n = {1, 2, 9, 3}",
                     "y = Resize <mode='linear', coordinate_transformation_mode='align_corners'>"
                     " (x, e, e, n)"),
    "resize cubic": (11, "float[1, 2, 5, 7] x", "y",
                     "float[0] e = {} float[4] s = {1, 1, 2, 0.6}",
                     "y = Resize <mode='cubic'> (x, e, s)"),
    "resize crop": (12, "float[1, 2, 5, 7] x", "y",
                    "float[8] r = {0, 0, 0.2, 0.1, 1, 1, 0.8, 0.9} float[4] s = {1, 1, 1, 1}",
                    "y = Resize <mode='linear', coordinate_transformation_mode="
                    "'tf_crop_and_resize', extrapolation_value=7.0> (x, r, s)"),
    "grid sample": (16, "float[1, 2, 4, 5] x, float[1, 3, 3, 2] g", "y", "",
                    "y = GridSample (x, g)"),
    "grid sample cubic": (16, "float[1, 2, 4, 5] x, float[1, 3, 3, 2] g", "y", "",
                          "y = GridSample <mode='bicubic', padding_mode='border'> (x, g)"),
    "grid sample nearest": (16, "float[1, 2, 4, 5] x, float[1, 3, 3, 2] g", "y", "",
                            "y = GridSample <mode='nearest', align_corners=1> (x, g)"),
    "group norm": (18, "float[2, 6, 3] x", "y", "float[3] s = {1, 2, 3} float[3] b = {0, 1, 2}",
                   "y = GroupNormalization <num_groups=3> (x, s, b)"),
    "group norm, computed": (18, "float[2, 6, 3] x, float[3] s, float[3] b", "y", "",
                             "y = GroupNormalization <num_groups=3> (x, s, b)"),
    "group norm of channels": (18, "float[2, 3, 3] x, float[3] s, float[3] b", "y", "",
                               "y = GroupNormalization <num_groups=3> (x, s, b)"),
    "batch norm 7": (7, "float[2, 2, 3] x", "y", "float[2] s = {1, 2} float[2] b = {3, 4}"
                     " float[2] m = {0.5, 0.1} float[2] v = {1, 2}",
                     "y = BatchNormalization <spatial=1, epsilon=0.01> (x, s, b, m, v)"),
    "batch norm 9": (9, "float[2, 2, 3] x", "y", "float[2] s = {1, 2} float[2] b = {3, 4}"
                     " float[2] m = {0.5, 0.1} float[2] v = {1, 2}",
                     "y = BatchNormalization (x, s, b, m, v)"),
    "dropout": (7, "float[2, 3] x", "y", "", "y = Dropout <ratio=0.3> (x)"),
    "dropout with a mask": (10, "float[2, 3] x", "y", "", "y, mask = Dropout (x)"),
    "dropout of 12": (12, "float[2, 3] x", "y, m", "float r = {0.5}", "y, m = Dropout (x, r)"),
    "scatter": (9, "float[3, 3] x, float[2, 3] u", "y",
                "int64[2, 3] i = {1, 0, 2, 0, 2, 1}", "y = Scatter <axis=0> (x, i, u)"),
    "roi align": (10, "float[1, 2, 9, 9] x", "y",
                  "float[2, 4] r = {0, 0, 5.5, 6.2, 2, 1, 8, 8} int64[2] i = {0, 0}",
                  "y = RoiAlign <output_height=2, output_width=3, sampling_ratio=2,"
                  " spatial_scale=0.7> (x, r, i)"),
    "roi align max": (10, "float[1, 2, 9, 9] x", "y",
                      "float[2, 4] r = {0, 0, 5.5, 6.2, 2, 1, 8, 8} int64[2] i = {0, 0}",
                      "y = RoiAlign <mode='max', output_height=2, output_width=2> (x, r, i)"),
    # New attributes and types only.
    **{
        f"{op} {words} {opset}": (opset, "float[1, 2, 7, 8] x", "y", "", f"y = {op} <{words}> (x)")
        for op in ("AveragePool", "MaxPool", "LpPool")
        for opset, words in (
            (7, "kernel_shape=[3, 3], strides=[2, 2]"),
            (7, "kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]"),
            (7, "kernel_shape=[3, 2], auto_pad='SAME_UPPER'"),
            (7, "kernel_shape=[3, 2], auto_pad='SAME_LOWER', strides=[2, 1]"))
    },
    **{
        f"{op} {words} {opset}": (opset, "float[1, 2, 7, 8] x", "y", "", f"y = {op} <{words}> (x)")
        for op, opset, words in (
            ("AveragePool", 10, "kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1"),
            ("AveragePool", 11, "kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1,"
             " pads=[1, 1, 1, 1], count_include_pad=1"),
            ("AveragePool", 7, "kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1"),
            ("MaxPool", 10, "kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1"),
            ("MaxPool", 10, "kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]"),
            ("AveragePool", 10,
             "kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]"),
            ("LpPool", 18, "kernel_shape=[3, 3], strides=[3, 3], ceil_mode=1, pads=[1, 1, 1, 1]"),
            ("MaxPool", 10, "kernel_shape=[2, 2], dilations=[2, 2], pads=[1, 1, 1, 1]"))
    },
    "max pool indices": (8, "float[1, 2, 6, 6] x", "y, i", "",
                         "y, i = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (x)"),
    "max unpool": (9, "float[1, 1, 4, 4] x", "y", "",
                   "p, i = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (x)"
                   " y = MaxUnpool <kernel_shape=[2, 2], strides=[2, 2]> (p, i)"),
    "conv": (7, "float[1, 2, 7, 8] x, float[3, 2, 3, 3] w", "y", "",
             "y = Conv <pads=[1, 1, 1, 1], strides=[2, 2]> (x, w)"),
    "conv same": (7, "float[1, 2, 7, 8] x, float[3, 2, 3, 3] w", "y", "",
                  "y = Conv <auto_pad='SAME_UPPER', strides=[2, 2]> (x, w)"),
    "conv transpose": (7, "float[1, 2, 4, 5] x, float[2, 3, 3, 3] w", "y", "",
                       "y = ConvTranspose <auto_pad='SAME_UPPER', strides=[2, 2]> (x, w)"),
    "gemm": (7, "float[3, 4] x, float[4, 5] w, float[5] b", "y", "",
             "y = Gemm <alpha=0.5> (x, w, b)"),
    "arithmetic": (7, "float[3, 4] x, float[4] z", "y", "",
                   "a = Add(x, z) b = Mul(a, z) c = Sub(b, x) d = Div(c, x) e = Max(d, x)"
                   " f = PRelu(e, z) g = Sum(f, x) y = Pow(g, z)"),
    "unary": (7, "float[3, 4] x", "y", "",
              "a = Abs(x) b = Sqrt(a) c = Selu(b) d = Elu(c) e = HardSigmoid(d) f = Softplus(e)"
              " g = Softsign(f) h = LeakyRelu(g) i = Cos(h) j = Tan(i) k = Neg(j) l = Floor(k)"
              " y = Ceil(l)"),
    "erf": (9, "float[3, 4] x", "y", "", "y = Erf(x)"),
    "one hot": (9, "float[3] x", "y",
                "int64[3] i = {0, 2, 7} int64 d = {3} float[2] v = {-1, 5}",
                "y = OneHot <axis=-1> (i, d, v)"),
    "arg max": (7, "float[3, 4] x", "y, z", "", "y = ArgMax <axis=1> (x) z = ArgMin(x)"),
    "cast": (7, "float[3, 4] x", "y, z", "",
             "y = Cast <to=7> (x) a = Cast <to=10> (x) z = Cast <to=1> (a)"),
    "gather": (7, "float[3, 4] x", "y", "int64[2] i = {2, 0}", "y = Gather <axis=1> (x, i)"),
    "gather nd": (11, "float[3, 4] x", "y", "int64[2, 2] i = {2, 0, 1, 3}", "y = GatherND(x, i)"),
    "scatter nd": (11, "float[3, 4] x", "y",
                   "int64[1, 2] i = {2, 0} float[1] u = {9}", "y = ScatterND(x, i, u)"),
    "depth to space": (7, "float[1, 8, 2, 3] x", "y, z", "",
                       "y = DepthToSpace <blocksize=2> (x) z = SpaceToDepth <blocksize=2> (y)"),
    "shape": (7, "float[2, 3] x", "y, n, z", "int64[2] s = {0, -1}",
              "y = Shape(x) n = Size(x) r = Reshape(x, s) f = Flatten(r) i = Identity(f)"
              " t = Transpose(i) z = Concat <axis=1> (t, t)"),
    "instance norm": (7, "float[2, 3, 4] x, float[3] s, float[3] b", "y", "",
                      "y = InstanceNormalization(x, s, b)"),
    "lrn": (7, "float[2, 5, 3, 3] x", "y", "", "y = LRN <size=3> (x)"),
    "lp norm": (7, "float[2, 3] x", "y", "",
                "z = Sub(x, x) a = Concat <axis=0> (x, z) y = LpNormalization <p=2, axis=1> (a)"),
    "mean variance": (9, "float[2, 3, 4, 4] x", "y", "", "y = MeanVarianceNormalization(x)"),
    "global pools": (7, "float[2, 3, 4, 4] x", "a, b, c", "",
                     "a = GlobalAveragePool(x) b = GlobalMaxPool(x) c = GlobalLpPool(x)"),
    "lstm": (7, "float[4, 2, 3] x, float[1, 20, 3] w, float[1, 20, 5] r", "y, h, c", "",
             "y, h, c = LSTM <hidden_size=5> (x, w, r)"),
    "gru": (7, "float[4, 2, 3] x, float[1, 15, 3] w, float[1, 15, 5] r", "y, h", "",
            "y, h = GRU <hidden_size=5, linear_before_reset=1> (x, w, r)"),
    "rnn": (7, "float[4, 2, 3] x, float[1, 5, 3] w, float[1, 5, 5] r", "y, h", "",
            "y, h = RNN <hidden_size=5> (x, w, r)"),
    "quantize": (10, "float[3, 4] x", "y", "float s = {0.1} uint8 z = {128}",
                 "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)"),
    "quantize an axis": (13, "float[3, 4] x", "y", "float[3] s = {0.1, 0.2, 0.3}"
                         " int8[3] z = {1, 2, 3}",
                         "q = QuantizeLinear <axis=0> (x, s, z)"
                         " y = DequantizeLinear <axis=0> (q, s, z)"),
    "range and where": (11, "float[3, 4] x", "y", "float a = {0} float b = {4} float c = {1}",
                        "r = Range(a, b, c) l = Less(x, r) y = Where(l, x, r)"),
    "tile and expand": (8, "float[3, 1] x", "y", "int64[2] s = {3, 4} int64[2] t = {2, 1}",
                        "e = Expand(x, s) y = Tile(e, t)"),
    "cumulated": (11, "float[3, 4] x", "y, n", "int64 a = {1}", "y = CumSum(x, a) n = Round(y)"),
    "non-zero": (9, "float[3, 4] x", "y, s, c", "",
                 "m = Constant <value=bool[3] {1, 0, 1}> () r = Relu(x) y = NonZero(r) s = Sign(x)"
                 " c = Compress <axis=0> (x, m)"),
    "compared": (7, "float[3, 4] x, float[3, 4] z", "y", "",
                 "a = Greater(x, z) b = Less(x, z) c = Or(a, b) d = And(a, c) e = Xor(c, d)"
                 " y = Not(e)"),
    "eye": (9, "float[3, 4] x", "y", "", "e = EyeLike <dtype=1> (x) y = Add(e, x)"),
    "det": (11, "float[2, 3, 3] x", "y", "", "y = Det(x)"),
    "einsum": (12, "float[3, 4] x", "y", "", "y = Einsum <equation='ij,kj->ik'> (x, x)"),
    "activations": (14, "float[3, 4] x", "y", "", "a = HardSwish(x) b = Celu(a) y = Sin(b)"),
    "mish": (18, "float[3, 4] x", "y", "", "y = Mish(x)"),
    "layer norm": (17, "float[3, 4] x, float[4] s", "y", "", "y = LayerNormalization(x, s)"),
    "sequence": (11, "float[6, 4] x", "y", "int64 n = {2} int64 i = {1}",
                 "s = SplitToSequence <axis=0> (x, n) y = SequenceAt(s, i)"),
    "loss": (12, "float[3, 5] x", "y", "int64[3] t = {1, 0, 4}",
             "y = SoftmaxCrossEntropyLoss(x, t)"),
    "trilu": (14, "float[4, 4] x", "y", "", "y = Trilu <upper=0> (x)"),
    "suppression": (10, "float[1, 6, 4] x, float[1, 2, 6] s", "y", "int64 n = {3}",
                    "y = NonMaxSuppression(x, s, n)"),
    "detection": (
        11, "float[1, 4, 6, 6] x, float[1, 2, 3, 3] z", "picked, up, scores",
        "int64[1] zero = {0} int64[1] two = {2} int64[1] four = {4} int64[3] boxes4 = {1, 36, 4}"
        " int64[2] one36 = {1, 36} int64[1] k = {9} int64[1] most = {4} float[1] iou = {0.4}",
        "e = Constant <value = float[0] {}> ()"
        " n = Shape (x) h = Slice (n, two, four) lead = Shape (z) b = Slice (lead, zero, two)"
        " size = Concat <axis=0> (b, h) zf = Cast <to=1> (z)"
        " up = Resize <mode='linear', coordinate_transformation_mode='pytorch_half_pixel'>"
        " (zf, e, e, size)"
        " flat = Reshape (x, boxes4) lo, wh = Split <axis=2, split=[2, 2]> (flat)"
        " hi = Add (lo, wh) b4 = Concat <axis=2> (lo, hi)"
        " all = Softmax <axis=1> (up) area = ReduceMax <axes=[1], keepdims=0> (all)"
        " row = Reshape (area, one36) best, at = TopK <axis=1> (row, k)"
        " at1 = Squeeze <axes=[0]> (at) near = Gather <axis=1> (b4, at1)"
        " scores = Unsqueeze <axes=[1]> (best)"
        " picked = NonMaxSuppression (near, scores, most, iou)"),
    "attention": (23, "float[1, 2, 4, 8] x, float[1, 2, 3, 8] p", "y, k, v", "",
                  "y, k, v = Attention <is_causal=1> (x, x, x, , p, p)"),
}  # fmt: skip


def model_of(case: Case) -> onnx.ModelProto:
    """Return the model, its outputs declared as what they are in ONNX Runtime."""
    opset, inputs, outputs, constants, nodes = case
    weights = f"<{constants.replace('} ', '}, ')}>" if constants else ""
    declared = ", ".join(f"float {name}" for name in outputs.split(", "))
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> '
        f"g ({inputs}) => ({declared}) {weights} {{ {nodes} }}"
    )
    model = onnx.parser.parse_model(text.replace("'", '"'))
    for value in model.graph.output:
        value.ClearField("type")
    for value, found in zip(model.graph.output, run(model, feeds_of(model)), strict=True):
        dtype = onnx.helper.np_dtype_to_tensor_dtype(found.dtype)
        made = onnx.helper.make_tensor_value_info(value.name, dtype, [None] * found.ndim)
        value.CopyFrom(made)
    return model


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return an array for each input; scales of an Upsample are no smaller than one."""
    rng = np.random.default_rng(7)
    grows = any(node.op_type == "Upsample" for node in model.graph.node)
    fed = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [3 if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        data = rng.standard_normal(shape)
        if grows and value.name == "s":
            data = np.array([1, 1, 2, 1.5])
        fed[value.name] = data.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return fed


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    """Return a session that runs the nodes as they are written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(model: onnx.ModelProto, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs."""
    return list(session(model).run(None, fed))
