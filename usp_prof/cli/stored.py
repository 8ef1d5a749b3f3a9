"""The store: reading a shard of a run's traces in parallel with other machines, its size, and clearing it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from usp_prof.cli.opening import executor_of, note, output, parse_ranks, reading_progress, run_options
from usp_prof.model.errors import InputError, UsageError
from usp_prof.model.printable import counted
from usp_prof.store.places import open_cache
from usp_prof.store.reading import read_ranks

if TYPE_CHECKING:
    import argparse


_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})\Z")


class Read:
    """`usp-prof read`: read a shard of a run's traces into the store, in parallel with other machines."""

    EXAMPLES = """\
  usp-prof read traces/run-1024r --store /shared/store --shard 3/64
  srun --ntasks=64 sh -c 'usp-prof read traces/run-1024r \\
    --store /shared/store --shard $SLURM_PROCID/64'
  usp-prof read traces/run-1024r --store /shared/store \\
    --executor dask:tcp://head:8786
  usp-prof analyze traces/run-1024r --store /shared/store
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        run_options(parser)
        parser.add_argument(
            "--shard", metavar="I/N", default="0/1", help="read shard I of N, counted from 0 (default: all)"
        )

    @staticmethod
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
        note(args, f"{counted(len(done.ranks), 'rank')} of share {index}/{count} in {done.store}")
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
        raise UsageError(f"--shard {text!r} is not a share", hint="--shard 0/64 to --shard 63/64")
    return int(match[1]), int(match[2])


class Cache:
    """`usp-prof cache`: show the size of the cache of traces, or clear it."""

    EXAMPLES = """\
  usp-prof cache info
  usp-prof cache clear
  usp-prof cache info --cache-dir /scratch/usp-prof
"""

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "action", choices=("info", "clear"), help="info: location and size; clear: delete everything"
        )

    @staticmethod
    def run(args: argparse.Namespace) -> int:
        """Print the size of the cache, or clear it."""
        cache = open_cache(args.cache_dir)
        console = output(args)
        if args.action == "clear":
            cleared = cache.clear()
            ranks = counted(cleared.entries, "rank")
            what = f"{ranks}, {cleared.derived} prepared timelines and the like, {_mb(cleared.size_bytes)}"
            console.print(f"removed {what} from {cache.place}", markup=False, soft_wrap=True)
            return 0
        size = cache.size()
        console.print(f"folder   {cache.place}", markup=False, soft_wrap=True)
        console.print(f"ranks    {size.entries}")
        console.print(f"derived  {size.derived} (prepared timelines and the like)")
        bound = f" of at most {_mb(size.limit_bytes)}" if size.limit_bytes else ""
        console.print(f"size     {_mb(size.size_bytes)}{bound}")
        return 0


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
