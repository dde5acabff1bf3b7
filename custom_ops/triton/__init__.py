"""Hand-written kernels for CUDA, in Triton: what generated kernels cannot do.

Of each kind one file recognises regions by what their bodies compute (`match`), never by a name,
and lays the launches out (see `ortkit.kernels.triton.templates`); `NAME_kernel.py` beside it holds
the kernels. Nothing imports those: they are read as text, and become part of each module that is
compiled, so that neither Triton nor a GPU is needed to recognise a region.
"""
