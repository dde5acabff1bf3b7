"""Comparing candidates with an original whose results are computed once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Self

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.verify.compare import OutputComparison, compare_outputs, is_telling, worse
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.feeds import FeedMaker, Feeds, Value, load_feeds
from ortkit.verify.random_ops import random_outputs
from ortkit.verify.sessions import CPU, SessionResult, Setting, run_sessions
from ortkit.verify.ties import TieSource, tie_check, tie_sources, write_probe
from ortkit.verify.verification import Verification
