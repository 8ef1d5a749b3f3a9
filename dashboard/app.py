"""Which server is this? One process and one port: Streamlit's pages, the timeline's tiles and a local BokehJS.

Start it with ``usp-prof dashboard PATH`` or ``streamlit run dashboard/app.py -- PATH``.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `streamlit run dashboard/app.py` puts only this folder on the path
    sys.path.insert(0, str(ROOT))

from bokeh.settings import settings  # noqa: E402 - after the path is set

from dashboard import data  # noqa: E402 - as above
from dashboard.timeline import perfetto, routes  # noqa: E402 - as above

ROUTES = [
    *routes.ROUTES,
    *perfetto.routes(),
    Mount("/usp/bokeh", StaticFiles(directory=str(settings.bokehjs_path()))),
]


@asynccontextmanager
async def lifespan(_: st.App) -> AsyncIterator[None]:
    """Begin to read before the first visitor comes."""
    data.prepare()
    yield


app = st.App(Path(__file__).with_name("script") / "main.py", lifespan=lifespan, routes=ROUTES)
