"""The examples' kernels in Triton, each imported where it is compiled."""
