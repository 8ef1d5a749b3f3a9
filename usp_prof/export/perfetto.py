"""Perfetto's page with a trace: the file is served on this machine until the page has fetched it.

The page runs in the browser and fetches the trace from the loopback address, so the trace never leaves this machine.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

from usp_prof.model.errors import UsageError

PAGE = "https://ui.perfetto.dev"
PORT = 9001
"""The only local port that the page's content policy lets it read."""
_HOSTS = (f"127.0.0.1:{PORT}", f"localhost:{PORT}")


class TraceServer:
    """Server that sends one file to Perfetto's page, once."""

    def __init__(self, trace: Path) -> None:
        """Bind the port; raise `UsageError` if another program uses it."""
        self.fetched = Event()
        self.link = f"{PAGE}/#!/?url=http://127.0.0.1:{PORT}/{trace.name}"
        """URL of the page, with a parameter that makes it fetch this file."""
        try:
            # One thread per connection: browsers open connections in advance and send nothing on them.
            self._server = ThreadingHTTPServer(("127.0.0.1", PORT), _handler(self, trace))
        except OSError as error:
            raise UsageError(
                f"port {PORT} of this machine cannot be used: {error.strerror}",
                hint="Perfetto reads from no other port: stop the program there, or use usp-prof export",
            ) from None

    def serve(self) -> None:
        """Handle requests until the page has fetched the complete file."""
        with self._server as server:
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                self.fetched.wait()
            finally:
                server.shutdown()


def _handler(server: TraceServer, trace: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Handler of requests for the trace from this machine's browser."""

        def do_OPTIONS(self) -> None:
            """Allow the page to read from the loopback address; some browsers send this preflight request first."""
            self.send_response(HTTPStatus.NO_CONTENT)
            self._allow()
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self.end_headers()

        def do_GET(self) -> None:
            """Send the trace."""
            # Reject other host names: a page may rebind its own name to the loopback address (DNS rebinding).
            if self.headers.get("Host") not in _HOSTS or self.path != f"/{trace.name}":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self._allow()
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(trace.stat().st_size))
            self.end_headers()
            # A page that is closed or reloaded drops the connection, and may fetch the file again.
            with suppress(ConnectionError), trace.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)
                server.fetched.set()

        def _allow(self) -> None:
            self.send_header("Access-Control-Allow-Origin", PAGE)
            self.send_header("Cache-Control", "no-store")

        def log_message(self, *_: object) -> None:
            """Print nothing per request."""

    return Handler
