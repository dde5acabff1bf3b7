"""Decompositions before regions are formed, undone where no region wants them."""
