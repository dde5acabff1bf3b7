"""Recognition of rotary position embeddings."""
