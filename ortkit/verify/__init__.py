"""Numeric verification: is a candidate model the same function as the original?"""
