"""Machine faults: a command in a separate process while something below it fails.

For any failure, the exit code is a documented one, no traceback is shown, an output is complete or missing, and the
next run's figures are those of a clean one.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from torture.mutations import sample
from torture.reports import report_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HANG_SECONDS = 400
"""Wall seconds on a shared machine: undisturbed, each of these commands takes 2 s; with a load of 20 it took 120 s."""
EXITS = {0, 2, 3}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # until our own code runs, Ctrl-C is the interpreter's affair
from usp_prof.cli.app import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""
LIMITED = """
import resource, sys
import pyarrow.parquet, usp_prof.cli.commands.analyze, usp_prof.report.build, usp_prof.store.load
from usp_prof.cli.app import main
kind, number, *words = sys.argv[1:]
limit = int(number)
if kind == "RLIMIT_DATA":  # beside what the process holds by now
    limit += int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(getattr(resource, kind), (limit, resource.getrlimit(getattr(resource, kind))[1]))
sys.exit(main(words))
"""
MOUNTED = """
set -e; disk=$1; kept=$2; how=$3; size=$4; shift 4
mount -t tmpfs -o "size=$size" none "$disk"
[ "$how" != read-only ] || mount -o remount,ro "$disk"
set +e; "$@"; status=$?
cp -r "$disk/." "$kept/"
exit $status
"""


def outputs(run: Path, to: Path) -> tuple[tuple[list[Any], Path], ...]:
    """List commands with the file that each of them writes."""
    return (
        (["analyze", run, "--format", "json", "-o", to / "report.json"], to / "report.json"),
        (["analyze", run, "--format", "html", "-o", to / "report.html"], to / "report.html"),
        (["export", run, "-o", to / "merged.json.gz"], to / "merged.json.gz"),
        (["baseline", "save", run, "-o", to / "baseline.json"], to / "baseline.json"),
        (["check", run, "--min", "step_time=0", "--history", to / "runs.parquet"], to / "runs.parquet"),
        (["query", run, "SELECT * FROM ops", "--format", "parquet", "-o", to / "ops.parquet"], to / "ops.parquet"),
        (["synth", to / "made", "--mesh", "dp=2", "--steps", "2"], to / "made" / "run.json"),
    )


def is_whole(path: Path) -> bool:
    """Return whether a file can be read to its end."""
    try:
        if path.suffix == ".parquet":
            pq.read_table(path)
        elif path.suffix == ".html":
            return path.read_text(encoding="utf-8").rstrip().endswith("</html>")
        else:
            json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


@cache
def clean_values() -> list[str]:
    """Return the undisturbed figures of the run under test."""
    with TemporaryDirectory() as name:
        return values_of(report_of(sample(0).write(Path(name) / "run"), Path(name) / "cache"))


def fault(seed: int, folder: Path) -> None:
    """Run a command during a failure of the machine."""
    rng = random.Random(seed)  # noqa: S311 - a seed to repeat, no secret
    run = sample(0).write(folder / "run")
    can_mount = os.geteuid() == 0 and shutil.which("unshare") is not None and sys.platform == "linux"
    kinds: tuple[Callable[[random.Random, Path, Path], None], ...] = (signalled, limited)
    rng.choice((*kinds, mounted) if can_mount else kinds)(rng, run, folder)
    after = values_of(report_of(run, folder / "cache"))
    assert after == clean_values(), "a fault changed the next run's figures"


def signalled(rng: random.Random, run: Path, folder: Path) -> None:
    """Send a signal at a random time to the process and its children."""
    words, written = rng.choice(outputs(run, folder))
    number = rng.choice(SIGNALS)
    begun = time.monotonic()
    process = _start([sys.executable, "-c", COMMAND, *words], folder)
    try:
        process.wait(rng.uniform(0.1, 3))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, number)
    err = _ended(process, begun, words)
    allowed = {*EXITS, -number} | ({130} if number == signal.SIGINT else set())
    _hold(process.returncode, allowed, err, words, written)


def limited(rng: random.Random, run: Path, folder: Path) -> None:
    """Limit file size, file descriptors or memory."""
    words, written = rng.choice(outputs(run, folder))
    kind, number = rng.choice((
        ("RLIMIT_FSIZE", rng.randrange(0, 300_000)),
        ("RLIMIT_NOFILE", rng.randrange(5, 40)),
        ("RLIMIT_DATA", rng.randrange(1 << 20, 400 << 20)),
    ))  # fmt: skip
    under_limit(kind, number, words, written, folder)


def under_limit(kind: str, number: int, words: Sequence[Any], written: Path, folder: Path) -> None:
    """Run a command under one of the system's limits.

    It keeps no compiled modules: up to Python 3.13 a module of which only a part could be written counts as whole, and
    every later process fails to import it.
    """
    begun = time.monotonic()
    process = _start([sys.executable, "-c", LIMITED, kind, number, *words], folder, PYTHONDONTWRITEBYTECODE="1")
    err = _ended(process, begun, words)
    # DuckDB's allocator fails in a thread that ends while no memory is available (docs/reference/limits.md).
    allowed = {*EXITS, -signal.SIGSEGV} if kind == "RLIMIT_DATA" and words[0] == "query" else EXITS
    _hold(process.returncode, allowed, f"{kind}={number}: {err}", words, written)


def mounted(rng: random.Random, run: Path, folder: Path) -> None:
    """Put output and cache on a small or read-only disk."""
    disk, unpacked = folder / "disk", folder / "kept"
    disk.mkdir()
    unpacked.mkdir()
    words, written = rng.choice(outputs(run, disk))
    how = rng.choice(("full", "full", "read-only"))
    size = rng.randrange(1, 100) * 4096
    begun = time.monotonic()
    prefix = ["unshare", "-m", "sh", "-c", MOUNTED, "sh", disk, unpacked, how, size]
    store = rng.choice((folder, disk)) / "cache"
    process = _start([*prefix, sys.executable, "-c", COMMAND, *words], folder, store=store)
    err = _ended(process, begun, words)
    _hold(process.returncode, EXITS, f"{how} disk of {size}: {err}", words, unpacked / written.relative_to(disk))
    if (unpacked / "cache").exists():
        shutil.copytree(unpacked / "cache", folder / "cache", dirs_exist_ok=True)


def crowd(seed: int, folder: Path) -> None:
    """Let eight processes read one uncached run concurrently; their results are equal."""
    run = sample(seed).write(folder / "run")
    begun = time.monotonic()
    words = [["analyze", run, "--format", "json", "-o", folder / f"{number}.json"] for number in range(8)]
    processes = [_start([sys.executable, "-c", COMMAND, *command], folder) for command in words]
    for number, process in enumerate(processes):
        err = _ended(process, begun, words[number])
        _hold(process.returncode, {0}, err, words[number], folder / f"{number}.json")
    written = {json.dumps(_without_paths(folder / f"{number}.json"), sort_keys=True) for number in range(8)}
    assert len(written) == 1, "eight processes at once give different reports"


def _without_paths(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))["metrics"]


def _start(words: Sequence[Any], folder: Path, store: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "USP_PROF_CACHE": str(store or folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        **variables,
    }
    return subprocess.Popen(
        [str(word) for word in words],
        env=environment,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _ended(process: subprocess.Popen[str], begun: float, words: Sequence[Any]) -> str:
    """Wait for the end of a process; return its standard error."""
    try:
        return process.communicate(timeout=HANG_SECONDS - (time.monotonic() - begun))[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"{words} hangs: {process.communicate()[1][-600:]}") from None


def _hold(status: int, allowed: set[int], err: str, words: Sequence[Any], written: Path) -> None:
    assert status in allowed, f"{words} exits with {status}: {err[-900:]}"
    assert "Traceback" not in err, f"{words} exits with {status}: {err[-900:]}"
    assert not written.exists() or is_whole(written), f"{words} left half a file: {written.name}"
    assert status or written.exists() or written.name == "runs.parquet", f"{words} ends well and wrote nothing"
