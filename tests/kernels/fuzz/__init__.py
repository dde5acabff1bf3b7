"""Random regions, run as kernels and as functions, and judged against float64.

In the order of the flow: `values` (a region), `grow` with `pointwise`, `views` and `rows` (random
ones), `feeds` (inputs), `reference` (float64, and how sure it is), `batch` (many regions in one
library and one model), `direct` (the compiled functions by themselves), `reduce` (the smallest
region that still fails). `python -m fuzz` in `tests/kernels` is the long run.
"""
