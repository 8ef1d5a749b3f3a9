"""Serving a trace to Perfetto's page: one file, once, to this machine's browser alone."""

from __future__ import annotations

import socket
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
    """Serve a file of 1 MB; return its bytes."""
    content = bytes(range(256)) * 4096
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
