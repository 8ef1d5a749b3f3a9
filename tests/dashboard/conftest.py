"""A dashboard on a small run, served as a user would serve it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Choose a recorded run of the repository, or make one up."""
    recorded = sorted((ROOT / "traces").glob("recorded-*"))
    if recorded:
        return recorded[0]
    folder = tmp_path_factory.mktemp("traces") / "made-up"
    subprocess.run([sys.executable, "-m", "usp_prof.cli.app", "synth", str(folder), "-q"], check=True)
    return folder


@pytest.fixture(scope="session")
def server(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the run, and give the address."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "usp_prof.cli.app", "dashboard", str(run_folder), "--port", str(port)]
    environment = os.environ | {"USP_PROF_CACHE": str(tmp_path_factory.mktemp("cache"))}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*command, "--no-browser"], stdout=output, stderr=output, env=environment, start_new_session=True
        ) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            _wait(f"{address}/_stcore/health", process, log)
            yield address
        finally:
            os.killpg(process.pid, 15)
            process.wait(PATIENCE_S)


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1):  # noqa: S310 - our own address
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the dashboard did not start:\n{log.read_text()}")
