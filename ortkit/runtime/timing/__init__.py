"""Timing sessions against each other."""
