"""Stage 3: what a lower precision may cost each step."""
