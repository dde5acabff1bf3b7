"""Decompositions before regions are formed, taken back where no region wants them."""
