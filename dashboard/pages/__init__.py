"""The pages, in the order of the rooms; the first is where a visitor lands. A test walks this folder."""

from __future__ import annotations

from .compare import COMPARE
from .learn import LEARN
from .overview import OVERVIEW
from .plan import PLAN, SWEEP
from .query import QUERY
from .ranks import RANKS
from .sections import COMMUNICATION, HOST, KERNELS, MEMORY, PIPELINE
from .suggestions import SUGGESTIONS
from .timeline import TIMELINE
from .whatif import WHAT_IF

PAGES = (
    OVERVIEW, RANKS, COMMUNICATION, PIPELINE, KERNELS, HOST, MEMORY,
    TIMELINE, SUGGESTIONS, WHAT_IF, PLAN, SWEEP, COMPARE, LEARN, QUERY,
)  # fmt: skip
