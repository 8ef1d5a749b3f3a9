"""Answers leave at once, and what each visitor needs comes out of memory, as it lies on disk."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import streamlit
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

from dashboard import chunks, network

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Message, Receive, Scope, Send

ASSETS = Path(streamlit.__file__).parent / "static"


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_as_it_was")
def test_connections_to_a_socket_that_names_no_protocol_wait_for_no_receipt() -> None:
    with closing(socket.socket()) as listener, closing(socket.socket()) as reader, closing(socket.socket()) as other:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        network.answer_at_once()
        reader.connect(listener.getsockname())
        with closing(listener.accept()[0]) as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not other.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert sys.getswitchinterval() < 0.005


async def _behind(scope: Scope, receive: Receive, send: Send) -> None:
    page = scope["path"] in ("/", "/query")
    answer = HTMLResponse("<head></head><p>page</p>") if page else PlainTextResponse("behind")
    await answer(scope, receive, send)


def _ask(path: str, method: str = "GET") -> tuple[dict[str, str], bytes]:
    """Ask the front for a path; gives the heads and the body of the answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    heads = [(b"accept", b"text/html,*/*"), (b"accept-encoding", b"gzip")]
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": heads, "query_string": b""}
    with ThreadPoolExecutor(1) as thread:  # here a loop may be running already: that of the tests' browser
        thread.submit(lambda: asyncio.run(network.Front(_behind)(scope, receive, send))).result()
    heads = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return heads, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize("kind", ["js", "css", "woff2"])
def test_a_file_of_the_pages_is_answered_as_it_lies_on_disk(kind: str) -> None:
    file = next(ASSETS.glob(f"static/**/*.{kind}"))
    heads, body = _ask(f"/{file.relative_to(ASSETS).as_posix()}")
    assert body == file.read_bytes()
    assert heads["content-length"] == str(len(body))
    assert "immutable" in heads["cache-control"]
    assert heads["content-type"].startswith({"js": "text/javascript", "css": "text/css", "woff2": "font/woff2"}[kind])


@pytest.mark.parametrize("path", ["/static/../index.html", "/static/js/none.js", "/usp/tile", "/static", "//static/js"])
def test_everything_else_is_handed_on(path: str) -> None:
    assert _ask(path)[1] == b"behind"


def test_a_question_that_is_no_get_is_handed_on() -> None:
    file = next(ASSETS.glob("static/js/*.js"))
    assert _ask(f"/{file.relative_to(ASSETS).as_posix()}", "HEAD")[1] == b"behind"


def test_a_page_names_in_its_head_what_it_will_need() -> None:
    heads, body = _ask("/")
    assert heads["content-length"] == str(len(body))
    assert f'<link rel="preload" as="script" href="{network.LIBRARY}"></head>'.encode() in body
    assert network.LIBRARY.encode() not in _ask("/query")[1]
    assert body.count(b"modulepreload") == len(chunks.later())


def test_what_a_page_will_need_is_there_and_not_named_by_it_already() -> None:
    later = chunks.later()
    assert any("/Metric." in address for address in later)
    assert len(set(later)) == len(later)
    index = (ASSETS / "index.html").read_text()
    for address in later:
        assert (ASSETS / address.lstrip("/")).is_file()
        assert address.rpartition("/")[2] not in index


@pytest.mark.parametrize("takes", ["gzip, deflate", "identity"])
def test_the_library_is_answered_packed_to_those_who_take_it(takes: str) -> None:
    scope = {
        "type": "http",
        "method": "GET",
        "path": network.LIBRARY,
        "headers": [(b"accept-encoding", takes.encode())],
    }
    answer = network.library(Request(scope))
    packed = takes.startswith("gzip")
    assert answer.headers["content-encoding"] == ("gzip" if packed else "identity")
    assert b"Bokeh" in (gzip.decompress(bytes(answer.body)) if packed else bytes(answer.body))
