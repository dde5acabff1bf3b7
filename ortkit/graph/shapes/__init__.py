"""Shape inference with symbolic sizes; `rules/` has one for each operator."""
