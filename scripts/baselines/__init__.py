"""Baselines of what the compiler decides and emits, for changes that must not alter either."""
