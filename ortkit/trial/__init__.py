"""A quick look at what ortkit gives for a model; writes nothing."""
