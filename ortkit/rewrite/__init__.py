"""Rewriting: passes as values, applied to a fixed point, with fuel and with reasons.

Read in this order: `passes` (what a pass is), `scope` (the graph being rewritten), `site`
(one node and what may be done there), `sweep` (to the fixed point), `pipeline` (in order).
"""
