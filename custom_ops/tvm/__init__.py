"""Hand-written kernels for CPUs: what generated loops over one iteration space cannot match.

One op a file. Each recognises regions by what their bodies compute (`match`), never by a name, and
is a `Template` of `ortkit.kernels.tvm.templates`: `launch` says how its work is cut, `lower`
writes it. `attention` is one, of rounded operands by `attention_amx`; the others are convolution
nets' and work on NHWC float32 tensors, so that vectors run over channels and a 1x1 convolution is
a matrix product:

- `pointwise_conv`: 1x1 convolution, after an optional gate per channel, with bias and epilogue.
- `winograd_conv`: 3x3 convolution by minimal filtering, with bias and epilogue.
- `direct_conv`: convolution of any window, with bias and epilogue.
- `depthwise_conv`: one filter a channel, with bias and epilogue, and optional means of rows.
- `expand_depthwise`: the two in a row, without writing what lies between them.
- `stem_conv`: a convolution of few channels from NCHW, with bias and epilogue.
- `squeeze_excite`: from means over rows to the gate of each channel.
- `max_pool`: the largest value of each window.

`bf16_product` is the matrix product or convolution of `ortkit.kernels.layouts.bf16_blocks`, whose
weights are packed bfloat16, with an epilogue.

An epilogue is any chain of pointwise operators on the convolution's result, such as an activation
or a residual sum, done while the result is in registers.
"""
