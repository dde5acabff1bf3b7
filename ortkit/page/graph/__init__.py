"""The page of a model: its graph, or two graphs side by side."""
