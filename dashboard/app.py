"""The server: one process and one port with Streamlit's pages, the timeline's tiles and a local BokehJS.

``usp-prof dashboard PATH`` starts it with uvicorn.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware

from . import data, drawings, report, routes, web  # noqa: F401 - all is loaded before the first visitor comes
from .pages import PAGES  # noqa: F401 - as above

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 1.0
ROUTES = [*routes.ROUTES, *routes.perfetto_routes(), drawings.LIBRARY_ROUTE]


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Begin to read before the first visitor comes; a prepared run is there when the first question is answered.

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
