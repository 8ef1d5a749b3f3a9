"""Which pages are there? One module a page: `TITLE`, `PATH` and `draw()`; the first is where a visitor lands."""

from __future__ import annotations

from dashboard.pages import (
    communication,
    compare,
    host,
    kernels,
    memory,
    overview,
    pipeline,
    plan,
    query,
    ranks,
    suggestions,
    sweep,
    timeline,
    whatif,
)

PAGES = (
    overview, timeline, communication, pipeline, kernels, ranks, host,
    memory, suggestions, whatif, plan, compare, sweep, query,
)  # fmt: skip
"""The pages in the order of the navigation; a test walks this folder against it."""
