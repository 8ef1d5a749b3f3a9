"""How does what is asked for leave the server? At once, and what each first visitor needs out of memory."""

from __future__ import annotations

import gc
import gzip
import socket
import sys
from functools import cache, lru_cache
from importlib.metadata import version
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LIBRARY = f"/usp/bokeh/{version('bokeh')}/bokeh.min.js"
"""The part of BokehJS that draws; of its widgets and tables no chart has any."""
CHARTLESS = frozenset({"/timeline", "/query", "/plan", "/sweep", "/whatif"})
"""Pages that open without a chart of Bokeh."""
TURN_S = 0.0005
FOREVER = "public, immutable, max-age=31536000"


def answer_at_once() -> None:
    """Let answers that are written in pieces leave without waiting for the reader's receipt of the first piece.

    Streamlit makes its socket without naming the protocol, and asyncio turns Nagle's wait off only where TCP is named:
    each small answer on a connection that stays open then takes 40 ms. Connections have it from who listens.
    Nor does an answer wait for long while another thread computes: Python would let it compute for 5 ms at a time.
    """
    sys.setswitchinterval(TURN_S)
    for found in gc.get_objects():
        if issubclass(type(found), socket.socket) and _listens(found):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _listens(found: socket.socket) -> bool:
    if found.fileno() < 0 or found.type != socket.SOCK_STREAM or found.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@cache
def _library() -> tuple[bytes, bytes]:
    """Give the library as it is, and packed."""
    from bokeh.settings import settings  # noqa: PLC0415 - a page without charts needs no Bokeh

    plain = Path(str(settings.bokehjs_path()), "js", "bokeh.min.js").read_bytes()
    return plain, gzip.compress(plain, 6, mtime=0)


def library(request: Request) -> Response:
    """Answer the library; it is packed once, not for each reader."""
    plain, packed = _library()
    said = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        return Response(packed, headers=said | {"Content-Encoding": "gzip"}, media_type="text/javascript")
    return Response(plain, headers=said | {"Content-Encoding": "identity"}, media_type="text/javascript")


ROUTE = Route(LIBRARY, library)


class Front:
    """Stands before Streamlit: answers the files of its pages out of memory, and says which library a page will need.

    A first visit asks for over a hundred small files. Streamlit looks each up on disk in a thread, which takes longer
    than the browser takes to run them; their names hold a stamp of their contents, so that they never change.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        root = Path(streamlit.__file__).parent / "static"
        self._files = {f"/{path.relative_to(root).as_posix()}": path for path in root.glob("static/**/*.*")}
        self._read = lru_cache(maxsize=None)(self._answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is known here, and hand on the rest."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "GET" and scope["path"] in self._files:
            head, body = self._read(scope["path"])
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": body})
        else:
            await self._app(scope, receive, send if scope["path"] in CHARTLESS else _naming_library(send))

    def _answer(self, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        body = self._files[path].read_bytes()
        kind = guess_type(path)[0] or "application/octet-stream"
        said = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": FOREVER}
        return [(name.lower().encode(), value.encode()) for name, value in said.items()], body


def _naming_library(send: Send) -> Send:
    """Add to a page's head that the library will be needed, so that it is on its way before it is asked for."""

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("content-type", "").startswith("text/html"):
                headers["Link"] = f"<{LIBRARY}>; rel=preload; as=script"
        await send(message)

    return named
