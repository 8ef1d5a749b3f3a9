"""Serving a trace to Perfetto's page: one file, once, to this machine's browser alone."""

from __future__ import annotations

import socket
import struct
import urllib.error
import urllib.request
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from usp_prof.export.perfetto import PORT, TraceServer
from usp_prof.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[bytes]:
    """Serve a file of 16 MB; return its bytes."""
    content = bytes(range(256)) * 65536
    (tmp_path / "trace.json.gz").write_bytes(content)
    with socket.socket() as probe:
        if not probe.connect_ex(("127.0.0.1", PORT)):
            pytest.skip(f"another program uses port {PORT}")
    server = TraceServer(tmp_path / "trace.json.gz")
    thread = Thread(target=server.serve)
    thread.start()
    yield content
    thread.join(10)
    assert not thread.is_alive(), "it ends once the file was fetched"


def fetch(path: str, host: str = f"127.0.0.1:{PORT}") -> tuple[bytes, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", headers={"Host": host})
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - this test's own server
        return answer.read(), answer.headers["Access-Control-Allow-Origin"]


def test_only_the_perfetto_page_gets_the_trace(served: bytes) -> None:
    for path, host in (("/", f"127.0.0.1:{PORT}"), ("/trace.json.gz", "elsewhere.example"), ("/../etc/passwd", "")):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(path, host)
    assert fetch("/trace.json.gz") == (served, "https://ui.perfetto.dev")


def test_a_port_in_use_is_reported(served: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(PORT)):
        TraceServer(tmp_path / "trace.json.gz")
    fetch("/trace.json.gz")


def test_a_connection_without_a_request_does_not_block_the_page(served: bytes) -> None:
    with socket.create_connection(("127.0.0.1", PORT)):  # as browsers open it in advance
        assert fetch("/trace.json.gz")[0] == served


def test_a_page_that_is_reloaded_fetches_the_trace_again(served: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as page:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        page.connect(("127.0.0.1", PORT))
        page.sendall(f"GET /trace.json.gz HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n\r\n".encode())
        assert page.recv(100)
        page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    assert fetch("/trace.json.gz")[0] == served
    assert "Traceback" not in capfd.readouterr().err
