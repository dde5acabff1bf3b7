"""The one call: open, rewrite, compile, verify, measure, report."""
