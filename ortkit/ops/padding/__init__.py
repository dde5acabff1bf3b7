"""Padding of batches: which rows are padding, and a proof that they reach no result."""
