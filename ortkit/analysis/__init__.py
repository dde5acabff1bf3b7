"""Facts about graphs that several passes ask for."""
