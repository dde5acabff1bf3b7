"""Raising the version of the default domain that a model imports."""
