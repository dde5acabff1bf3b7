"""Tests of declared operators: guarded memory, the interpreter, cases."""
