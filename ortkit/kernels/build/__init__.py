"""Building kernel libraries: compilers, the cache of kernels and its records."""
