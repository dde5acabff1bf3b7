"""Hand-written kernels for CPUs: what generated loops over one iteration space cannot match.

One op a file, in folders by area. Each recognises regions by what their bodies compute (`match`),
never by a name, and is a `Template` of `ortkit.kernels.tvm.templates`: `launch` says how its work
is cut, `lower` writes it. Kernels of convolution nets work on NHWC tensors, so that vectors run
over channels and a 1x1 convolution is a matrix product.

An epilogue is any chain of pointwise operators on the result, such as an activation or a residual
sum, done while the result is in registers.
"""
