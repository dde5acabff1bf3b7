"""Inputs that are made up, read or given: what they cover."""
