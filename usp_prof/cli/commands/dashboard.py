"""Explore runs, plans and sweeps in a browser."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

from usp_prof.cli.opening import SAMPLINGS, parse_ranks, whole_number
from usp_prof.contract import PUBLISHED_SWEEPS, SWEEP_FILE
from usp_prof.inputs.remote import RemotePath, location
from usp_prof.inputs.runs import is_made_name
from usp_prof.limits import Range
from usp_prof.model.errors import InputError, UsageError, unknown_name
from usp_prof.model.printable import one_line
from usp_prof.store.cache import FOLDER_VARIABLE, UNBOUNDED
from usp_prof.store.places import SIZE_VARIABLE
from usp_prof.store.sampling import Sampling

EXAMPLES = """\
  usp-prof dashboard traces/my-run
  usp-prof dashboard traces/before traces/after --port 8600
  usp-prof dashboard traces/run-1024r --ranks outliers
  usp-prof dashboard                  (plan for a model you choose)
  usp-prof dashboard sweeps/tiny      (results of a sweep)
  usp-prof dashboard --published playbook FILE.csv  (the playbook's own sweep)
  usp-prof dashboard traces/my-run --host 0.0.0.0   (for others, with a token)
"""
INSTALLED_PACKAGE = "usp_prof_dashboard"
FOLDER_OF_CLONE = "dashboard"
"""The package's folder in the repository; other projects may have a package of this name too."""
ANYBODY = "0.0.0.0"  # noqa: S104 - compared only
LOOPBACK = ("127.0.0.1", "localhost", "::1")
FIRST_PORT = 8501
PORT = Range(1, (1 << 16) - 1)
PORTS_TRIED = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH",
        help="traces (several to compare), or the folder of a sweep; without a path, only planning",
    )  # fmt: skip
    parser.add_argument(
        "--published",
        nargs=2,
        metavar=("FORM", "FILE"),
        help="draw a published sweep; FORM: playbook (the Ultra-Scale Playbook)",
    )
    parser.add_argument("--ranks", metavar="LIST", help=f"read only these ranks, such as 0-3,7; or {SAMPLINGS}")
    parser.add_argument(
        "--port", type=whole_number(PORT), metavar="N", help=f"port (default: the first free from {FIRST_PORT})"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.set_defaults(page="")


def run(args: argparse.Namespace) -> int:
    """Start the dashboard's server; Ctrl-C ends it."""
    dashboard_package = package()
    if importlib.util.find_spec("streamlit") is None or not dashboard_package:
        raise InputError("the dashboard is not installed", hint="pip install 'usp-prof[dashboard]'")
    sweeps = [str(Path(path).resolve()) for path in args.paths if (Path(path) / SWEEP_FILE).is_file()]
    run_paths = [path for path in args.paths if not (Path(path) / SWEEP_FILE).is_file()]
    for path in run_paths:
        _check_path(path)
    form, table = args.published or ("", "")
    if form and form not in PUBLISHED_SWEEPS:
        raise unknown_name("published sweep", form, PUBLISHED_SWEEPS)
    if form and not Path(table).is_file():
        raise InputError(f"there is no table {table}", hint="--published playbook FILE.csv")
    ranks = parse_ranks(args.ranks) if args.ranks else None
    if isinstance(ranks, str):
        Sampling.parse(ranks)
    _check_address(args.host, args.port or 0)  # 0: any port
    port = args.port or free_port(args.host)
    token = "" if args.host in LOOPBACK else secrets.token_urlsafe(16)
    link = link_to(args.host, port, page=args.page, token=token)
    sys.stderr.write(f"usp-prof dashboard: {one_line(link)}  (Ctrl-C ends it)\n")
    environment = os.environ | {"USP_PROF_DASHBOARD_PATHS": json.dumps(run_paths)}
    environment["USP_PROF_DASHBOARD_SWEEPS"] = json.dumps(sweeps)
    environment["USP_PROF_DASHBOARD_PUBLISHED"] = json.dumps([form, str(Path(table).resolve())] if form else [])
    environment |= {"USP_PROF_DASHBOARD_HOSTS": args.host, "USP_PROF_DASHBOARD_TOKEN": token}
    environment["USP_PROF_DASHBOARD_RANKS"] = json.dumps(ranks if isinstance(ranks, str | None) else list(ranks))
    if args.cache_dir:
        environment[FOLDER_VARIABLE] = args.cache_dir
        if not isinstance(location(args.cache_dir), RemotePath):  # an explicit store has no size limit from us
            environment.setdefault(SIZE_VARIABLE, str(UNBOUNDED))
    return serve(command(dashboard_package, args.host, port), environment, "" if args.no_browser else link)


def _check_address(host: str, port: int) -> None:
    """Raise if this machine cannot listen on an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = f"leave out --port for the first free one, and --host for {LOOPBACK[0]}"
        raise UsageError(f"cannot listen on {one_line(host)} port {port}: {reason}", hint=hint) from error


def link_to(host: str, port: int, *, page: str = "", token: str = "") -> str:
    """Return the URL of a page (by its path; "" is the start page), with the token that it needs."""
    return f"http://{host}:{port}/{page}" + (f"?token={token}" if token else "")


def _check_path(path: str) -> None:
    """Raise an error for a path that does not exist; why a path cannot be read is reported on its page."""
    is_here = isinstance(location(path), RemotePath) or Path(path).exists()
    if not is_here and not any(letter in path for letter in "*?[") and not is_made_name(Path(path).name):
        raise InputError(f"{path} does not exist", hint="name a folder of traces: usp-prof dashboard traces/my-run")


def package() -> str:
    """Return the dashboard's package: as installed, or from this module's clone; "" if there is none."""
    if importlib.util.find_spec(INSTALLED_PACKAGE) is not None:
        return INSTALLED_PACKAGE
    spec = importlib.util.find_spec(FOLDER_OF_CLONE)
    folder = Path(__file__).resolve().parents[3] / FOLDER_OF_CLONE
    is_ours = spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent == folder
    return FOLDER_OF_CLONE if is_ours else ""


def serve(words: list[str], environment: dict[str, str], link: str = "") -> int:
    """Run the server until it ends, and open `link` in a browser once it answers; SIGTERM also ends the server."""
    with subprocess.Popen(words, env=environment) as server:  # noqa: S603 - our own command
        before = signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        try:
            if link and _answers(link, server):
                webbrowser.open(link)
            return server.wait()
        except KeyboardInterrupt:
            return server.wait()
        finally:
            signal.signal(signal.SIGTERM, before)


def _answers(link: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server accepts connections; return False if it ended before."""
    address = urlsplit(link)
    host = "127.0.0.1" if address.hostname == ANYBODY else address.hostname
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((host, address.port)) == 0:
                return True
        time.sleep(0.1)
    return False


def command(dashboard_package: str, host: str, port: int) -> list[str]:
    """Return the command line that serves the dashboard: uvicorn, as Streamlit documents it for `st.App`."""
    options = ["--host", host, "--port", str(port), "--log-level", "warning"]
    return [sys.executable, "-m", "uvicorn", f"{dashboard_package}.app:app", *options]


def free_port(host: str) -> int:
    """Return the first port that is free."""
    for port in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1" if host == ANYBODY else host, port)) != 0:
                return port
    raise UsageError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} are taken", hint="choose one with --port")
