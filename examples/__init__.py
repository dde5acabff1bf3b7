"""Execution providers written in Python, to read and to copy from."""
