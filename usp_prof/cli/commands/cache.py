"""Show or clear the cache."""

from __future__ import annotations

import argparse

from usp_prof.cli.opening import output
from usp_prof.model.printable import counted
from usp_prof.store.places import open_cache

EXAMPLES = """\
  usp-prof cache info
  usp-prof cache clear
  usp-prof cache info --cache-dir /scratch/usp-prof
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("action", choices=("info", "clear"), help="info: location and size; clear: delete everything")


def run(args: argparse.Namespace) -> int:
    """Print the size of the cache, or clear it."""
    cache = open_cache(args.cache_dir)
    console = output(args)
    if args.action == "clear":
        cleared = cache.clear()
        ranks = counted(cleared.entries, "rank")
        summary = f"{ranks}, {cleared.derived} prepared timelines and the like, {_mb(cleared.size_bytes)}"
        console.print(f"removed {summary} from {cache.place}", markup=False, soft_wrap=True)
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
