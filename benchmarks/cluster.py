"""Robustness of distributed reading: workers and shards that die, stop or are refused must not change the result.

    python benchmarks/cluster.py                     32 ranks of 5,000 events
    python benchmarks/cluster.py --ranks 128 --events 20000

dask: traces and store are on moto's S3 server on this machine, which answers every 20th request with a 500. Of three
workers, one is killed and one is stopped for 20 s after a tenth of the ranks is stored. The report must equal that of
the traces on disk, byte for byte, and the store must have each rank once.

shares: of eight concurrent `read --shard` processes, two are killed after two ranks are stored, and restarted. The
store must have the same files as that of a single process, byte for byte.

Exits with 1 on any difference.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from harness import TEST_SUPPORT

from usp_prof.extras.synth.declaration import Declaration, with_events
from usp_prof.extras.synth.write import write
from usp_prof.inputs.remote import location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

sys.path.insert(0, str(TEST_SUPPORT))
from dask_cluster import dask_cluster
from s3_server import BUCKET, s3_server

SHARES, KILLED = 8, 2
WORKERS, STOPPED_S, FAILS_EVERY = 3, 20, 20
_PROGRAM = "from usp_prof.cli.app import main; raise SystemExit(main())"


def command(*words: str) -> list[str]:
    """Return the command line that runs `usp-prof` in a separate process."""
    return [sys.executable, "-c", _PROGRAM, *words, "-q"]


def wait_for(done: Callable[[], bool], process: subprocess.Popen[bytes]) -> bool:
    """Wait until a condition is true; return False if the process ends first."""
    while process.poll() is None:
        if done():
            return True
        time.sleep(0.05)
    return False


def stored(place: str) -> int:
    """Count the complete entries of a store."""
    return sum(file.name == "entry.json" for file in location(place).files())  # type: ignore[union-attr]


@contextmanager
def finding(url: str, fetched: Path) -> Iterator[None]:
    """Make this process and its children use the S3 server, and keep fetched files in a folder."""
    settings = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    before = dict(os.environ)
    os.environ |= settings | {"AWS_DEFAULT_REGION": "us-east-1", "XDG_CACHE_HOME": str(fetched)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def dask(base: Path, ranks: int) -> list[str]:
    """Analyze with workers, one of which dies, and return the differences."""
    run = base / "run"
    local, remote = base / "local.json", base / "remote.json"
    words = ("--format", "json", "-o")
    subprocess.run(command("analyze", str(run), "--store", str(base / "local"), *words, str(local)), check=True)
    place, store = f"s3://{BUCKET}/run", f"s3://{BUCKET}/store"
    with s3_server() as server, finding(server.url, base / "fetched"), dask_cluster(WORKERS, base) as cluster:
        for file in run.iterdir():
            server.put(f"{BUCKET}/run/{file.name}", file.read_bytes())
        killed, stopped, _ = cluster.workers
        options = ("--store", store, "--executor", f"dask:{cluster.address}", *words, str(remote))
        began = time.perf_counter()
        with server.faults(FAILS_EVERY, 500), subprocess.Popen(command("analyze", place, *options)) as process:
            in_time = wait_for(lambda: stored(store) >= max(1, ranks // 10), process)
            os.kill(killed, signal.SIGKILL)
            os.kill(stopped, signal.SIGSTOP)
            resume = Timer(STOPPED_S, os.kill, (stopped, signal.SIGCONT))
            resume.start()
            left = ranks - stored(store)
            code = process.wait()
            resume.join()
        entries = stored(store)
        print(f"dask: {left} of {ranks} ranks left when the worker died, {time.perf_counter() - began:.0f} s")
    same = remote.exists() and remote.read_text() == local.read_text().replace(str(run), place)
    return [
        text
        for text, is_wrong in (
            (f"ended with {code}", code != 0),
            ("all was read before a worker died", not (in_time and left)),
            ("another report", not same),
            (f"{entries} entries of {ranks} ranks", entries != ranks),
        )
        if is_wrong
    ]


def shares(base: Path) -> list[str]:
    """Read in shares, two of which are killed and restarted, and return the differences."""
    store_of_one, store_of_shares = base / "one", base / "many"
    subprocess.run(command("read", str(base / "run"), "--store", str(store_of_one)), check=True)

    def share(number: int) -> subprocess.Popen[bytes]:
        words = ("--store", str(store_of_shares), "--shard", f"{number}/{SHARES}")
        return subprocess.Popen(command("read", str(base / "run"), *words))

    readers = [share(number) for number in range(SHARES)]
    wait_for(lambda: store_of_shares.is_dir() and len(list(store_of_shares.glob("*/entry.json"))) >= KILLED, readers[0])
    running = [reader.poll() is None for reader in readers[:KILLED]]
    for reader in readers[:KILLED]:
        reader.kill()
        reader.wait()
    stored_ranks = len(list(store_of_shares.glob("*/entry.json")))
    readers[:KILLED] = [share(number) for number in range(KILLED)]
    codes = [reader.wait() for reader in readers]
    print(f"shares: {sum(running)} killed, {stored_ranks} ranks were stored")
    wrong = [] if contents(store_of_one) == contents(store_of_shares) else ["another store"]
    wrong += [] if not any(codes) else [f"ended with {codes}"]
    return wrong if all(running) else [*wrong, "a share ended before it was killed"]


def contents(store: Path) -> dict[str, bytes]:
    """Return every file of the complete entries; a killed reader leaves a folder `aside-*`."""
    files = (path for folder in store.iterdir() if not folder.name.startswith("aside-") for path in folder.iterdir())
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def main() -> int:
    """Read the same run both ways, and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=32)
    parser.add_argument("--events", type=int, default=5_000)
    args = parser.parse_args()
    declared = Declaration.from_dict({"mesh": {"dp": args.ranks}, "work": {"steps": 3}})
    with tempfile.TemporaryDirectory(prefix="usp-prof-cluster-") as name:
        base = Path(name)
        write(with_events(declared, args.events), base / "run")
        print(f"{args.ranks} ranks of {args.events} events, load {os.getloadavg()[0]:.0f}")
        wrong = [*shares(base), *dask(base, args.ranks)]
    print(", ".join(wrong) or "the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
