"""Which server is this? One process and one port: Streamlit's pages, the timeline's tiles and a local BokehJS.

Start it with ``usp-prof dashboard PATH`` or ``streamlit run dashboard/app.py -- PATH``.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st
from anyio import to_thread
from starlette.middleware import Middleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `streamlit run dashboard/app.py` puts only this folder on the path
    sys.path.insert(0, str(ROOT))

from dashboard import data, network, report  # noqa: E402, F401 - after the path is set; the rest is loaded as well
from dashboard.pages import PAGES  # noqa: E402, F401 - a first visitor waits for no import
from dashboard.timeline import perfetto, routes  # noqa: E402 - as above

PATIENCE_S = 1.0
ROUTES = [*routes.ROUTES, *perfetto.routes(), network.ROUTE]


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Begin to read before the first visitor comes; a prepared run is there when the first question is answered.

    What is read while pages are asked for would only slow both down. A run that takes longer shows how far it is.
    """
    network.answer_at_once()
    data.prepare()
    await to_thread.run_sync(data.ready, PATIENCE_S)
    yield


app = st.App(
    Path(__file__).with_name("script") / "main.py",
    lifespan=lifespan,
    routes=ROUTES,
    middleware=[Middleware(network.Front)],
)
