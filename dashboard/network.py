"""How does what is asked for leave the server? At once, and what each first visitor needs out of memory."""

from __future__ import annotations

import gc
import gzip
import socket
import sys
from functools import cache, lru_cache
from http import HTTPStatus
from importlib.metadata import version
from mimetypes import guess_type
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.routing import Route

from dashboard import chunks

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
    """Stands before Streamlit: answers the files of its pages out of memory, and says what a page will need.

    A first visit asks for over a hundred small files. Streamlit looks each up on disk in a thread, which takes longer
    than the browser takes to run them; their names hold a stamp of their contents, so that they never change.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        root = chunks.ROOT
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
        elif scope["method"] == "GET" and b"text/html" in dict(scope["headers"]).get(b"accept", b""):
            plain = [each for each in scope["headers"] if each[0] != b"accept-encoding"]
            await self._app({**scope, "headers": plain}, receive, _Head(send, scope["path"]).send)
        else:
            await self._app(scope, receive, send)

    def _answer(self, path: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
        body = self._files[path].read_bytes()
        kind = guess_type(path)[0] or "application/octet-stream"
        said = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": FOREVER}
        return [(name.lower().encode(), value.encode()) for name, value in said.items()], body


class _Head:
    """Adds to a page's head what it will need, so that it is on its way before it is asked for."""

    def __init__(self, send: Send, path: str) -> None:
        self._send = send
        self._path = path
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Hold a page back until it is whole; hand on all else as it comes."""
        if message["type"] == "http.response.start" and _is_page(message):
            self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body"):
            await self._whole()

    async def _whole(self) -> None:
        start = self._start or {}
        body = self._body.replace(b"</head>", _links(charts=self._path not in CHARTLESS).encode() + b"</head>", 1)
        MutableHeaders(scope=start)["Content-Length"] = str(len(body))
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_page(message: Message) -> bool:
    headers = MutableHeaders(scope=message)
    kind, packed = headers.get("content-type", ""), "content-encoding" in headers
    return message["status"] == HTTPStatus.OK and kind.startswith("text/html") and not packed


def _links(*, charts: bool) -> str:
    ahead = [f'<link rel="modulepreload" crossorigin href="{address}">' for address in chunks.later()]
    library_ahead = [f'<link rel="preload" as="script" href="{LIBRARY}">'] if charts else []
    return "".join(ahead + library_ahead)
