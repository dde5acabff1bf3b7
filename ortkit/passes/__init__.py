"""The graph transformations, one per file; `catalog` lists them, `presets` orders them."""
