"""S3 server in a separate process: moto behind a layer that fails, denies or delays on request.

`PUT /_faults {"every": 3, "status": 500, "seconds": 0.1}`: every third request is answered so, and none reaches S3.
`PUT /_faults {"every": 0, "whole": true}`: ranges are ignored. `PUT /_expired {"key": "old", "after": 5, "status":
403}`: the sixth request signed with that key is refused, and so on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BUCKET = "traces"
_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=anybody/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, "
    "Signature=0",
    "Content-Type": "application/octet-stream",
}
"""moto accepts any signature and derives the service from it."""
_BODY = "<Error><Code>{code}</Code><Message>injected</Message></Error>"
_CODES = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown"}


class Faulty:
    """Wrapper of an S3 application that refuses or delays requests."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.faults = {"every": 0, "status": 500, "seconds": 0}
        self.expired: dict[str, Any] = {"key": "", "after": 0, "status": 403}
        self.asked = count(1)

    def __call__(self, request: dict[str, Any], answer: Any) -> Iterable[bytes]:
        if request["PATH_INFO"] == "/_faults":
            self.faults = json.loads(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
            self.asked = count(1)
            answer("200 OK", [])
            return [b""]
        if request["PATH_INFO"] == "/_expired":
            self.expired = json.loads(request["wsgi.input"].read(int(request["CONTENT_LENGTH"])))
            answer("200 OK", [])
            return [b""]
        if self.expired["key"] and f"={self.expired['key']}/" in request.get("HTTP_AUTHORIZATION", ""):
            self.expired["after"] -= 1
            if self.expired["after"] < 0:
                status = self.expired["status"]
                answer(f"{status} Refused", [("Content-Type", "application/xml")])
                return [_BODY.format(code="ExpiredToken" if status == 400 else "AccessDenied").encode()]
        if self.faults.get("whole"):
            request.pop("HTTP_RANGE", None)
        every = self.faults["every"]
        if not every or next(self.asked) % every:
            return self.inner(request, answer)
        time.sleep(self.faults["seconds"])
        status = self.faults["status"]
        if not status:
            return self.inner(request, answer)
        answer(f"{status} Fault", [("Content-Type", "application/xml")])
        return [_BODY.format(code=_CODES[status]).encode()]


class Server:
    """Operations of a test on the server."""

    def __init__(self, url: str, process: int) -> None:
        self.url = url
        self.process = process
        """Process number, by which a benchmark separates the server's CPU time from its own."""

    def put(self, path: str, content: bytes, **headers: str) -> None:
        request = urllib.request.Request(f"{self.url}/{path}", content, _SIGNED | headers, method="PUT")  # noqa: S310 - loopback
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310 - loopback

    @contextmanager
    def faults(self, every: int, status: int = 0, seconds: float = 0) -> Iterator[None]:
        self.put("_faults", json.dumps({"every": every, "status": status, "seconds": seconds}).encode())
        try:
            yield
        finally:
            self.put("_faults", json.dumps({"every": 0}).encode())

    @contextmanager
    def whole_objects(self) -> Iterator[None]:
        """Answer with 200 and the complete object for any requested range."""
        self.put("_faults", json.dumps({"every": 0, "whole": True}).encode())
        try:
            yield
        finally:
            self.put("_faults", json.dumps({"every": 0}).encode())

    @contextmanager
    def expiry(self, key: str, after: int, status: int) -> Iterator[None]:
        """Refuse requests signed with a key after a number of accepted ones."""
        self.put("_expired", json.dumps({"key": key, "after": after, "status": status}).encode())
        try:
            yield
        finally:
            self.put("_expired", json.dumps({"key": ""}).encode())


@contextmanager
def s3_server() -> Iterator[Server]:
    """Start the server on a free port of 127.0.0.1, with one bucket; end it afterwards."""
    with subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = Server(f"http://127.0.0.1:{int(process.stdout.readline())}", process.pid)
        try:
            server.put(BUCKET, b"")
            yield server
        finally:
            process.kill()


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app  # noqa: PLC0415
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 - only the process of the server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_request(self, *_: object) -> None:
            pass

    application = Faulty(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _serve()
