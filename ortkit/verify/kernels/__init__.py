"""Stage 2: each kernel alone, beside its function body."""
