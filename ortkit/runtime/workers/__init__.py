"""Processes that hold one session each and run it on request."""
