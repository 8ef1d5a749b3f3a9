"""Guard before every request: foreign host names and missing tokens are refused.

It is plain ASGI middleware. A page of a foreign site can make a browser send requests here (DNS rebinding), so
pages, tiles and the websocket answer only to the names that this server was started under. A server that others on the
network can reach requires a token instead: first in the link, then in a cookie. Browsers share cookies between ports,
so the name of the cookie contains a hash of the token: two servers on one machine have a cookie each.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS_VARIABLE = "USP_PROF_DASHBOARD_HOSTS"
TOKEN_VARIABLE = "USP_PROF_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})

SECURITY_HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    # Streamlit's front end and BokehJS create styles, scripts and workers.
    "Content-Security-Policy": (
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; object-src 'none'; base-uri 'self'; "
        "frame-ancestors 'none'; form-action 'self'"
    ),
}


class Guard:
    """Refuses requests with a foreign host name or without the token; adds security headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = OWN_NAMES | {name.lower() for name in os.environ.get(HOSTS_VARIABLE, "").split(",") if name}
        self._token = os.environ.get(TOKEN_VARIABLE, "")
        self._cookie = cookie_name(self._token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)  # Perfetto's pages bring a policy of their own
                if self._token and given:  # the token is valid: requests with a wrong one are refused before
                    headers.append("Set-Cookie", f"{self._cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if self._token:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0] or _value_of_cookie(
                headers, self._cookie
            )
            if not hmac.compare_digest(given.encode(), self._token.encode()):
                return PlainTextResponse("open the link with its token, as the terminal shows it", status_code=403)
            return None
        if _host_name(headers.get("host", "")) not in self._names:
            return PlainTextResponse("this server answers only to the name it was started under", status_code=421)
        return None


async def _refuse(refusal: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await refusal(scope, receive, send)
    else:  # before it was accepted, closing a websocket answers its handshake with 403
        await send({"type": "websocket.close", "code": 1008})


def _host_name(host: str) -> str:
    """Remove the port: 'localhost:8501' is localhost, '[::1]:8501' is [::1]."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() and (not name.count(":") or name.endswith("]")) else host.lower()


def cookie_name(token: str) -> str:
    """Return the name of the cookie that holds a token."""
    return f"usp_prof_token_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def _value_of_cookie(headers: Headers, name: str) -> str:
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return cookie.value if cookie else ""
