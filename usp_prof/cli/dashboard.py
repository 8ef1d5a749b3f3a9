"""How is the dashboard started? One process, one port, this machine only unless told otherwise."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from usp_prof.charts.theme import DARK, LIGHT
from usp_prof.model.errors import InputError, UsageError

if TYPE_CHECKING:
    import argparse

EXAMPLES = """\
  usp-prof dashboard traces/my-run
  usp-prof dashboard traces/before traces/after --port 8600
  usp-prof dashboard traces/my-run --host 0.0.0.0 --no-browser   (for others on your network)
"""
FIRST_PORT = 8501
PORTS_TRIED = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a folder of traces, or a file; several to compare")
    parser.add_argument("--port", type=int, metavar="N", help=f"port (default: the first free from {FIRST_PORT})")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")


def run(args: argparse.Namespace) -> int:
    """Start Streamlit on the dashboard's own script; it ends with Ctrl-C."""
    if importlib.util.find_spec("streamlit") is None or importlib.util.find_spec("dashboard") is None:
        raise InputError("the dashboard is not installed", hint="pip install 'usp-prof[dashboard]'")
    missing = [path for path in args.paths if not Path(path).exists() and not any(c in path for c in "*?[")]
    if missing:
        raise InputError(f"there is no {missing[0]}", hint="name a folder of traces: usp-prof dashboard traces/my-run")
    port = args.port or free_port(args.host)
    sys.stderr.write(f"usp-prof dashboard: http://{args.host}:{port}  (Ctrl-C ends it)\n")
    environment = os.environ | {"USP_PROF_DASHBOARD_PATHS": json.dumps([str(path) for path in args.paths])}
    if args.cache_dir:
        environment["USP_PROF_CACHE"] = args.cache_dir
    return serve(command(args.host, port, headless=args.no_browser), environment)


def serve(words: list[str], environment: dict[str, str]) -> int:
    """Run the server until it ends; who ends this process ends the server."""
    with subprocess.Popen(words, env=environment) as server:  # noqa: S603 - our own command
        before = signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        try:
            return server.wait()
        except KeyboardInterrupt:
            return server.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def command(host: str, port: int, *, headless: bool) -> list[str]:
    """Write the command line that serves the dashboard."""
    spec = importlib.util.find_spec("dashboard")
    if spec is None or spec.origin is None:
        raise InputError("the dashboard is not installed", hint="pip install 'usp-prof[dashboard]'")
    script = Path(spec.origin).with_name("app.py")
    options = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": str(headless).lower(),
        "browser.gatherUsageStats": "false",
        "server.fileWatcherType": "none",
        "client.toolbarMode": "minimal",
        "logger.level": "warning",
        "theme.light.primaryColor": LIGHT.accent,
        "theme.dark.primaryColor": DARK.accent,
        "theme.light.backgroundColor": LIGHT.background,
        "theme.dark.backgroundColor": DARK.background,
        "theme.dark.secondaryBackgroundColor": DARK.panel,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    return [sys.executable, "-m", "streamlit", "run", str(script), *words]


def free_port(host: str) -> int:
    """Find the first port that nobody listens on."""
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1" if host == "0.0.0.0" else host, port)) != 0:  # noqa: S104 - compared only
                return port
    raise UsageError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are taken", hint="choose one with --port")
