"""Dashboard on recorded runs and a hostile one, served as for a user."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import pytest
from dashboard_visit import Visit

from usp_prof.extras.synth.declaration import Declaration
from usp_prof.extras.synth.write import write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120
HOSTILE = (
    "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>",
    "\u202egnp.esrever \u05e9\u05dc\u05d5\u05dd \u0627\u0644 `$(rm -rf)` **bold** [a](javascript:alert(1))",
    "a_very_long_name_" * 600,
    "';DROP TABLE events;--\u0000\ufffd{{7*7}}${7*7}",
)
"""Names that a trace could hold: markup, right-to-left, very long, other languages' quotes."""


@pytest.fixture(scope="session")
def run_folder() -> Path:
    """Return a recorded run of the repository."""
    return ROOT / "traces" / "recorded-1f1b"


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a recorded run, and give its kernels, ops and annotations hostile names."""
    folder = tmp_path_factory.mktemp("hostile") / "<b>run</b>"
    source = ROOT / "traces" / "recorded-slow-rank"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.gz", "*.md"))
    for path in sorted(source.glob("*.json.gz"))[:2]:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for number, event in enumerate(trace["traceEvents"]):
            if event.get("cat") == "cpu_op" or str(event.get("name", "")).startswith("pace::"):
                event["name"] = HOSTILE[number % len(HOSTILE)]
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., AbstractContextManager[str]]:
    """Return a function that serves runs as for a user until its block ends; the block gets the printed link."""

    @contextmanager
    def serve(*runs: Path, code: Path = ROOT, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
        port = port or _free_port()
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "usp_prof.cli.app", "dashboard", *map(str, runs)]
        options = ["--host", host, "--port", str(port), "--no-browser"]
        environment = os.environ | {"USP_PROF_CACHE": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": str(code)}
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [*command, *options], cwd=code, stdout=output, stderr=output, env=environment,
                start_new_session=True,
            ) as process,
        ):  # fmt: skip
            try:
                yield _wait(process, log)
            finally:
                os.killpg(process.pid, 15)
                process.wait(PATIENCE_S)

    return serve


@pytest.fixture(scope="session")
def synthetic_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a synthetic GPU run of eight ranks, in which rank 5 computes slowly."""
    folder = tmp_path_factory.mktemp("synthetic") / "eight-ranks"
    described = {
        "mesh": {"dp": 4, "tp": 2}, "shape": {"layers": 4}, "work": {"steps": 3, "micro_batches": 2}, "seed": 5,
        "faults": [{"kind": "slow_rank", "rank": 5, "factor": 1.5}],
    }  # fmt: skip
    write(Declaration.from_dict(described), folder)
    return folder


@pytest.fixture(scope="session")
def server(
    serving: Callable[..., AbstractContextManager[str]], run_folder: Path, hostile_folder: Path, synthetic_folder: Path
) -> Iterator[str]:
    """Serve a recorded run, another for comparison, the hostile one and a synthetic one; yield the address."""
    with serving(run_folder, run_folder.with_name("recorded-interleaved"), hostile_folder, synthetic_folder) as address:
        yield address


@pytest.fixture
def visit(browser: Browser, server: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, accept_downloads=True)
    yield Visit(context.new_page(), server)
    context.close()


def _free_port() -> int:
    """Find a port below those that the system gives away, from 32768 on: the server takes seconds to listen there."""
    drawn = SystemRandom()
    while True:
        port = drawn.randrange(10_000, 32_000)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server answers, and return the link that it printed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        link = re.search(r"http://\S+", log.read_text())
        try:
            if link:
                with urllib.request.urlopen(link[0].replace("/?", "/_stcore/health?"), timeout=1):  # noqa: S310 - our own address
                    return link[0].removesuffix("/")
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"the dashboard did not start:\n{log.read_text()}")
