"""Reports on a model: its cost, its differences from another, where its values come from."""
