"""Models side by side: what each takes, and whether they compute the same."""
