"""Access control of the dashboard: host names, token, security headers; and the bundled library."""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

from dashboard import drawings, web

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Message
    from starlette.websockets import WebSocket


def _page(_: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


def _own_policy(_: Request) -> PlainTextResponse:
    return PlainTextResponse("page", headers={"Content-Security-Policy": "default-src 'none'"})


async def _talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


ROUTES = [Route("/", _page), Route("/own", _own_policy), WebSocketRoute("/stream", _talk), drawings.LIBRARY_ROUTE]


def ask(path: str = "/", host: str = "localhost:8501", kind: str = "http", **headers: str) -> list[Message]:
    """Send a request to a guarded app, and return what it sends."""
    sent: list[Message] = []
    first = {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def receive() -> Message:
        return first

    async def send(message: Message) -> None:
        sent.append(message)

    heads = [(b"host", host.encode()), *((name.encode(), value.encode()) for name, value in headers.items())]
    path, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": heads,
        "subprotocols": [],
    }
    app = web.Guard(Starlette(routes=ROUTES))
    with ThreadPoolExecutor(1) as thread:  # a loop may be running here already: that of the tests' browser
        thread.submit(lambda: asyncio.run(app(scope, receive, send))).result()
    return sent


def heads(sent: list[Message]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1:8501", "127.0.0.1", "[::1]:8501", "LOCALHOST"])
def test_own_names_are_answered_with_security_headers(host: str) -> None:
    sent = ask(host=host)
    assert sent[0]["status"] == 200
    assert heads(sent)["x-frame-options"] == "DENY"
    assert heads(sent)["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in heads(sent)["content-security-policy"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8501", "localhost.evil.example", "", "127.0.0.1.evil"])
@pytest.mark.parametrize("path", ["/", "/usp/tile", drawings.LIBRARY])
def test_a_foreign_host_name_is_refused_everywhere(host: str, path: str) -> None:
    assert ask(path, host=host)[0]["status"] == 421


def test_a_foreign_host_name_gets_no_websocket() -> None:
    assert ask("/stream", host="evil.example", kind="websocket")[0]["type"] == "websocket.close"
    assert ask("/stream", kind="websocket")[0]["type"] == "websocket.accept"


def test_the_host_name_of_the_command_line_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.HOSTS_VARIABLE, "head-node")
    assert ask(host="head-node:8501")[0]["status"] == 200


def test_a_token_is_required_in_the_link_and_later_in_the_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.TOKEN_VARIABLE, "secret")
    assert ask(host="anything")[0]["status"] == 403
    assert ask("/?token=wrong", host="anything")[0]["status"] == 403
    first = ask("/?token=secret", host="anything")
    assert first[0]["status"] == 200
    cookie = heads(first)["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert ask(host="anything", cookie=cookie.split(";")[0])[0]["status"] == 200
    assert ask(host="anything", cookie=f"{web.cookie_name('secret')}=wrong")[0]["status"] == 403
    assert ask("/stream", kind="websocket")[0]["type"] == "websocket.close"


def test_each_server_on_one_machine_has_its_own_cookie(monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = []
    for token in ("first", "second"):
        monkeypatch.setenv(web.TOKEN_VARIABLE, token)
        cookies.append(heads(ask(f"/?token={token}"))["set-cookie"].split(";")[0])
        assert ask(cookie="; ".join(cookies))[0]["status"] == 200
    monkeypatch.setenv(web.TOKEN_VARIABLE, "first")
    assert ask(cookie="; ".join(cookies))[0]["status"] == 200


def test_the_own_policy_of_a_page_is_unchanged() -> None:
    assert heads(ask("/own"))["content-security-policy"] == "default-src 'none'"


def test_the_library_is_compressed_for_browsers_that_accept_it() -> None:
    plain, packed = ask(drawings.LIBRARY), ask(drawings.LIBRARY, **{"accept-encoding": "gzip"})
    assert heads(packed)["content-encoding"] == "gzip"
    assert gzip.decompress(packed[1]["body"]) == plain[1]["body"]
