"""The version of ortkit."""

__version__ = "0.1.0"
