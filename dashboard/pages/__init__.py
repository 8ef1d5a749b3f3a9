"""Which pages are there? One module a page: `TITLE`, `PATH` and `draw()`; the first is where a visitor lands."""

from __future__ import annotations

from dashboard.pages import overview, query, timeline

PAGES = (overview, timeline, query)
"""The pages in the order of the navigation; a test walks this folder against it."""
