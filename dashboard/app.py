"""The server: one process and one port with Streamlit's pages, the timeline's tiles and a local BokehJS.

``usp-prof dashboard PATH`` starts it with uvicorn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse
from starlette.routing import Route

from . import data, drawings, report, routes, web  # noqa: F401 - all is loaded before the first visitor comes
from .pages import PAGES

if TYPE_CHECKING:
    from starlette.requests import Request

PATIENCE_S = 1.0


def _to_landing_page(request: Request) -> RedirectResponse:
    return RedirectResponse(str(request.url.replace(scheme="", netloc="", path="/")))


# Streamlit serves its first page at "/" alone, and answers the page's own path with "Page not found".
LANDING_PAGE = Route(f"/{PAGES[0].path}", _to_landing_page)
ROUTES = [LANDING_PAGE, *routes.ROUTES, *routes.perfetto_routes(), drawings.LIBRARY_ROUTE]


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Begin to read before the first visitor comes; a prepared run is ready for the first request.

    What is read while pages are asked for would only slow both down. A run that takes longer shows how far it is.
    """
    data.prepare()
    await to_thread.run_sync(data.ready, PATIENCE_S)
    yield


app = st.App(
    Path(__file__).with_name("script") / "main.py",
    lifespan=lifespan,
    routes=ROUTES,
    middleware=[Middleware(web.Guard)],
)
