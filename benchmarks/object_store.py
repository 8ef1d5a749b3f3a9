"""How fast are traces read from an object store, against the disk? moto's S3 server on this machine, by turns.

    python benchmarks/object_store.py                 4 traces of 50 MB
    python benchmarks/object_store.py --traces 64

Each reading is a process of its own into an empty store on the disk. The server takes its share of the same cores, so
the ratio of times is a lower bound; CPU of the reader alone is printed beside it. Exits with 1 below 0.8.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
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


def read(path: str, base: Path) -> tuple[float, float]:
    """Read into an empty store; gives time on the clock and CPU in s."""
    with tempfile.TemporaryDirectory(dir=base) as store:
        command = [sys.executable, "-c", _MEASURED, path, "--store", store]
        return tuple(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


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
        turns = [(read(str(base / "run"), base), read(f"s3://{BUCKET}/run", base)) for _ in range(args.rounds)]
    ratio = median(disk[0] / remote[0] for disk, remote in turns)
    cpu = median(remote[1] / disk[1] for disk, remote in turns)
    speed = size / 1e6 / median(remote[0] for _, remote in turns)
    print(f"{args.traces} traces, {size / 1e6:.0f} MB, load {os.getloadavg()[0]:.0f}: {speed:.0f} MB/s from S3, "
          f"{ratio:.2f} of the speed from disk, {cpu:.2f} of its CPU")  # fmt: skip
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
