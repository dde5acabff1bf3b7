"""Builders of real architectures with seeded random weights; see `models.catalog`."""

from models.catalog import BUILDERS, build, spellings
from models.feeds import feeds

__all__ = ["BUILDERS", "build", "feeds", "spellings"]
