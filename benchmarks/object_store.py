"""How fast are traces read from an object store, against the disk? moto's S3 server on this machine, by turns.

    python benchmarks/object_store.py                 4 traces of 50 MB
    python benchmarks/object_store.py --traces 64

Each reading is a process of its own into an empty store on the disk. The server takes its share of the same cores, so
the ratio of times is a lower bound. Beside it stand the CPU of the reader alone, against the disk, and the server's per
GB. Linux only: `/proc` tells the server's CPU. Exits with 1 below 0.8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from usp_prof.synth.declaration import Declaration, with_events
from usp_prof.synth.write import write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from s3_server import BUCKET, s3_server

_MEASURED = """
import json, os, sys, time
from usp_prof.cli.app import main
began = time.perf_counter()
assert main(["read", *sys.argv[1:], "-q"]) == 0
spent = os.times()
print(json.dumps([time.perf_counter() - began, sum(spent[:4])]))
"""
BAR = 0.8
BYTES_PER_EVENT = 260


@dataclass(frozen=True, slots=True)
class Reading:
    """What it took to read all traces into an empty store."""

    wall_s: float
    reader_s: float
    """CPU of the reader and its workers."""
    server_s: float
    """CPU of the server meanwhile."""


def read(path: str, base: Path, server: int) -> Reading:
    """Read into an empty store."""
    with tempfile.TemporaryDirectory(dir=base) as store:
        command = [sys.executable, "-c", _MEASURED, path, "--store", store]
        before = cpu_of(server)
        wall_s, reader_s = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return Reading(wall_s, reader_s, cpu_of(server) - before)


def cpu_of(process: int) -> float:
    """Give the CPU of a process so far in s."""
    # Behind the name in brackets: user and system time are the 12th and the 13th.
    spent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure by turns, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    run = Declaration.from_dict({"mesh": {"dp": args.traces}})
    with tempfile.TemporaryDirectory(prefix="usp-prof-object-store-") as name, s3_server() as server:
        base = Path(name)
        files = write(with_events(run, args.megabytes * 1_000_000 // BYTES_PER_EVENT), base / "run", compress=False)
        for file in files:
            server.put(f"{BUCKET}/run/{file.name}", file.read_bytes())
        os.environ |= {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        size = sum(file.stat().st_size for file in files)
        local, remote = str(base / "run"), f"s3://{BUCKET}/run"
        turns = [[read(path, base, server.process) for path in (local, remote)] for _ in range(args.rounds)]
    ratio = median(disk.wall_s / s3.wall_s for disk, s3 in turns)
    of_reader = median(s3.reader_s / disk.reader_s for disk, s3 in turns)
    of_server = median(s3.server_s for _, s3 in turns) / size * 1e9
    speed = size / 1e6 / median(s3.wall_s for _, s3 in turns)
    print(f"{args.traces} traces, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.0f}: {speed:.0f} MB/s from S3, "
          f"{ratio:.2f} of the speed from disk; {of_reader:.2f} of the reader's CPU from disk, "
          f"and {of_server:.1f} s of the server's per GB")  # fmt: skip
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
