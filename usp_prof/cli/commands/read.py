"""Read traces into the store in advance, or one shard of them."""

from __future__ import annotations

import argparse
import re

from usp_prof.cli.opening import executor_of, note, parse_ranks, reading_progress, run_options
from usp_prof.model.errors import InputError, UsageError
from usp_prof.model.printable import counted
from usp_prof.store.reading import read_ranks

EXAMPLES = """\
  usp-prof read traces/run-1024r --store /shared/store --shard 3/64
  srun --ntasks=64 sh -c 'usp-prof read traces/run-1024r \\
    --store /shared/store --shard $SLURM_PROCID/64'
  usp-prof read traces/run-1024r --store /shared/store \\
    --executor dask:tcp://head:8786
  usp-prof analyze traces/run-1024r --store /shared/store
"""
_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})\Z")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    run_options(parser)
    parser.add_argument(
        "--shard", metavar="I/N", default="0/1", help="read shard I of N, counted from 0 (default: all)"
    )


def run(args: argparse.Namespace) -> int:
    """Read the ranks that are not in the store yet."""
    index, count = parse_shard(args.shard)
    ranks = parse_ranks(args.ranks) if args.ranks else None
    with reading_progress(args) as progress:
        done = read_ranks(
            args.path, run=args.run, ranks=ranks, shard=(index, count), cache_dir=args.cache_dir,
            progress=progress, executor=executor_of(args),
        )  # fmt: skip
    for row in done.health:
        note(args, f"rank {row.rank}: {row.detail}")
    note(args, f"{counted(len(done.ranks), 'rank')} of shard {index}/{count} in {done.store}")
    if len(done.ranks) < done.wanted:
        raise InputError(
            f"{done.wanted - len(done.ranks)} of {counted(done.wanted, 'rank')} are not in the store",
            hint="see the reasons above; ranks in the store are not read again",
        )
    return 0


def parse_shard(text: str) -> tuple[int, int]:
    """Parse `I/N`: shard I of N."""
    match = _SHARD.match(text.strip())
    if match is None or not int(match[1]) < int(match[2]):
        raise UsageError(f"--shard {text!r} is not a shard", hint="for 64 shards, pass --shard 0/64 to --shard 63/64")
    return int(match[1]), int(match[2])
