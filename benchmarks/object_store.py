"""Reading speed from an object store compared with the disk, by turns, with an S3 server on this machine.

    python benchmarks/object_store.py                 4 traces of 50 MB, from nginx
    python benchmarks/object_store.py --traces 64
    python benchmarks/object_store.py --server moto   from a server written in Python

nginx represents a fast store: it answers the S3 requests used for reading (a listing, ranges with their ETags), and
ignores signatures. moto is a complete S3 server; on few cores its CPU time decides.

Each reading is a separate process that fills an empty store on the disk. The server uses the same cores, so the ratio
of times is a lower bound. The table also has the reader's CPU time relative to the disk, and the server's per GB. Linux
only: `/proc` has the server's CPU time. Exits with 1 below 0.8.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from harness import TEST_SUPPORT, Program, at_least, measure, status

from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write

sys.path.insert(0, str(TEST_SUPPORT))
from s3_server import BUCKET, Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

READ = Program(
    "from usp_prof.cli.app import main",
    """
assert main(["read", *arguments, "-q"]) == 0
""",
)
BAR = 0.8
BYTES_PER_EVENT = 260
_STARTED_S = 30

# A single process, so its CPU time is the server's. The bucket's folder is requested like an object but is not one.
_NGINX = """
daemon off;
master_process off;
pid {base}/nginx.pid;
error_log {base}/error.log;
events {{}}
http {{
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    client_body_temp_path {base}/body;
    proxy_temp_path {base}/proxy;
    fastcgi_temp_path {base}/fastcgi;
    uwsgi_temp_path {base}/uwsgi;
    scgi_temp_path {base}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {base};
        location = /{bucket} {{ default_type application/xml; try_files /listing.xml =404; }}
        location = /{bucket}/run {{ return 404; }}
    }}
}}
"""
_LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
<Name>{bucket}</Name><Prefix>run/</Prefix><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys>
<IsTruncated>false</IsTruncated>{objects}</ListBucketResult>"""
_OBJECT = """<Contents><Key>run/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>
<ETag>{tag}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Time to read all traces into an empty store."""

    wall_s: float
    reader_s: float
    """CPU time of the reader and its workers."""
    server_s: float
    """CPU time of the server during the reading."""


@contextmanager
def moto(files: Sequence[Path]) -> Iterator[Server]:
    """Serve files with moto, which keeps them in memory."""
    with s3_server() as server:
        for file in files:
            server.put(f"{BUCKET}/run/{file.name}", file.read_bytes())
        yield server


@contextmanager
def nginx(files: Sequence[Path]) -> Iterator[Server]:
    """Serve files with nginx in place: from `run` of the folder named after the bucket."""
    program = shutil.which("nginx")
    if program is None:
        raise SystemExit("nginx is not installed: --server moto")
    base = files[0].parents[2]
    objects = "".join(
        _OBJECT.format(name=escape(file.name), size=stat.st_size, tag=f'"{int(stat.st_mtime):x}-{stat.st_size:x}"')
        for file in files
        for stat in [file.stat()]
    )
    (base / "listing.xml").write_text(_LISTING.format(bucket=BUCKET, count=len(files), objects=objects))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (base / "nginx.conf").write_text(_NGINX.format(base=base, port=port, bucket=BUCKET))
    with subprocess.Popen([program, "-c", str(base / "nginx.conf")], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    """Wait until the server accepts connections."""
    until = time.monotonic() + _STARTED_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server did not start")


SERVERS = {"nginx": nginx, "moto": moto}


def read(path: str, base: Path, server: int) -> Reading:
    """Read into an empty store."""
    with tempfile.TemporaryDirectory(dir=base) as store:
        before = cpu_of(server)
        cost = measure(READ, path, "--store", store)
        return Reading(cost.wall_s, cost.cpu_s, cpu_of(server) - before)


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a process so far."""
    # After the name in brackets, user and system time are the 12th and 13th fields.
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure by turns, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=SERVERS, default="nginx")
    args = parser.parse_args()
    run = Declaration.from_dict({"mesh": {"dp": args.traces}})
    with tempfile.TemporaryDirectory(prefix="usp-prof-object-store-") as name:
        base = Path(name)
        events = args.megabytes * 1_000_000 // BYTES_PER_EVENT
        files = write(with_events(run, events), base / BUCKET / "run", compress=False)
        size = sum(file.stat().st_size for file in files)
        with SERVERS[args.server](files) as server:
            os.environ |= {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            local, remote = str(files[0].parent), f"s3://{BUCKET}/run"
            turns = [[read(path, base, server.process) for path in (local, remote)] for _ in range(args.rounds)]
    ratio = median(disk.wall_s / s3.wall_s for disk, s3 in turns)
    of_reader = median(s3.reader_s / disk.reader_s for disk, s3 in turns)
    of_server = median(s3.server_s for _, s3 in turns) / size * 1e9
    speed = size / 1e6 / median(s3.wall_s for _, s3 in turns)
    print(f"{args.traces} traces, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.0f}: {speed:.0f} MB/s "
          f"from {args.server}, {ratio:.2f} of the speed from disk; {of_reader:.2f} of the reader's CPU from disk, "
          f"and {of_server:.1f} s of the server's per GB")  # fmt: skip
    return status([at_least("speed from the store / from disk", ratio, BAR)])


if __name__ == "__main__":
    raise SystemExit(main())
