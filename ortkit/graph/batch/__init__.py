"""Fixed batches: a proof that each row is computed on its own, and the graph for fewer rows."""
