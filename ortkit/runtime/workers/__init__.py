"""Processes that hold one session each and run it when told to."""
