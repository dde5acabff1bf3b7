"""The examples' kernels in TIR, each imported where it is compiled."""
