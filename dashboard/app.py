"""Which server is this? One process and one port: Streamlit's pages, the timeline's tiles and a local BokehJS.

Start it with ``usp-prof dashboard PATH`` or ``streamlit run dashboard/app.py -- PATH``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import streamlit as st
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # `streamlit run dashboard/app.py` puts only this folder on the path
    sys.path.insert(0, str(ROOT))

from bokeh.settings import settings  # noqa: E402 - after the path is set

from dashboard.timeline.routes import ROUTES  # noqa: E402 - as above

BOKEH_FILES = Mount("/usp/bokeh", StaticFiles(directory=str(settings.bokehjs_path())))

app = st.App(Path(__file__).with_name("script") / "main.py", routes=[*ROUTES, BOKEH_FILES])
