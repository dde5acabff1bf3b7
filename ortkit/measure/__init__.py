"""Measurements on this machine: what work costs, and which kernels pay inside a session."""
